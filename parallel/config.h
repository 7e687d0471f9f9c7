// The parallel section of the config: how the ranks are arranged, and what NCCL may use.
#pragma once

#include <compare>
#include <cstdint>
#include <string_view>

namespace octavo {

// Ranks along each axis of the mesh.
struct MeshShape {
  int64_t replicate = 1;
  int64_t shard = 1;
  int64_t tensor = 1;
  int64_t context = 1;
  auto operator<=>(const MeshShape&) const = default;  // NOLINT(modernize-use-nullptr): a fault of clang-tidy 14

  int64_t data() const;    // ranks that work on different samples
  int64_t shards() const;  // ranks that share one copy of the parameters
  int64_t ranks() const;

  // How many times as often as by a ring a tensor goes through the links by an all-to-all over the shards: once where
  // one machine holds them all, or each one of them. Between machines with several a ring leaves each machine once, an
  // all-to-all once a rank.
  int64_t all_to_all_load(int64_t ranks_per_machine) const {
    if (shards() * tensor <= ranks_per_machine || tensor >= ranks_per_machine) return 1;
    return ranks_per_machine / tensor;
  }
};

// Whether a rank forgets the full weights of a unit after its forward pass, and gathers them anew in backward.
enum class Reshard : uint8_t {
  kAuto,  // where they do not all fit into memory
  kTrue,
  kFalse,
};

// How NCCL reaches the tensors of a collective.
enum class NcclMemory : uint8_t {
  kAuto,        // registered for the shard axis of a run on one machine
  kPlain,       // through buffers of its own
  kRegistered,  // directly, in memory that all ranks of a group have mapped (symmetric windows)
};

struct ParallelConfig {
  int64_t data_parallel_shard = -1;      // -1: all that the other axes leave
  int64_t data_parallel_replicate = -1;  // -1: the same beside a given data_parallel_shard; else to be chosen, or 1
  int64_t tensor_parallel = 1;
  int64_t context_parallel = 1;
  int64_t tensor_parallel_chunks = 1;
  Reshard reshard_after_forward = Reshard::kAuto;
  bool accumulate_unsharded = false;
  NcclMemory nccl_memory = NcclMemory::kAuto;
  int64_t cover_multiprocessors = 0;  // 0: all
  double timeout_s = 600;             // 0: never

  // The mesh of a run on `ranks` ranks, of one copy where the number of copies is to be chosen. Throws InputError
  // unless the sizes multiply to `ranks`.
  MeshShape mesh_shape(int64_t ranks) const;
  // Whether its sizes, which are positive or -1, do.
  bool suits(int64_t ranks) const;
  // Whether it is left to the run how many copies there are (app/memory/mesh_choice.h).
  bool leaves_copies() const { return data_parallel_shard == -1 && data_parallel_replicate == -1; }
  // Whether a run on GPUs registers its memory with NCCL.
  bool registers_memory(const MeshShape& mesh, bool one_machine) const;
  // Ranks of it that work on different samples.
  int64_t data_parallel_ranks(int64_t ranks) const { return mesh_shape(ranks).data(); }
};

enum class Axis : uint8_t { kReplicate, kShard, kContext, kTensor };

// An axis of the mesh. A new axis is a row of kMeshAxes, its two numbers, and the collectives along it.
struct MeshAxis {
  const char* name;  // in plans and messages
  const char* key;   // of the config's section parallel
  int64_t ParallelConfig::*configured;
  int64_t MeshShape::*size;
  bool divides_samples;  // its ranks work on different samples
  bool divides_tokens;   // its ranks work on different tokens, of the same samples or others
  bool shards_state;     // its ranks share one copy of the parameters and the optimizer's states
  bool always_named;     // in texts; else where it has several ranks
};

// By Axis, outermost first: the ranks of the last are neighbours on one machine, those of the first may lie far apart.
inline constexpr MeshAxis kMeshAxes[] = {
    {"replicate", "data_parallel_replicate", &ParallelConfig::data_parallel_replicate, &MeshShape::replicate, true,
     true, false, true},
    {"shard", "data_parallel_shard", &ParallelConfig::data_parallel_shard, &MeshShape::shard, true, true, true, true},
    {"context", "context_parallel", &ParallelConfig::context_parallel, &MeshShape::context, false, true, true, false},
    {"tensor", "tensor_parallel", &ParallelConfig::tensor_parallel, &MeshShape::tensor, false, false, false, true},
};
// Whether the ranks of a group, which communicate, have different places on an axis. "world", "tokens" (ranks that work
// on different tokens), "micro-batch" (ranks that work on the same samples) and "shard" (ranks that share one copy of
// the state) may span several axes. Every other group has the name of the axis that it spans.
constexpr bool spans(std::string_view group, const MeshAxis& axis) {
  if (group == "world") return true;
  if (group == "tokens") return axis.divides_tokens;
  if (group == "micro-batch") return !axis.divides_samples;
  if (group == "shard") return axis.shards_state;
  return group == axis.name;
}
// Those whose configured size may be -1: the first that is has all ranks that the others leave.
inline constexpr Axis kFillingAxes[] = {Axis::kShard, Axis::kReplicate};
// The axis that does; null where all sizes are given.
const MeshAxis* filling_axis(const ParallelConfig& config);

}  // namespace octavo

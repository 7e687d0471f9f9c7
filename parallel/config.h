// The config section `parallel`: the arrangement of the ranks in a mesh, and options of NCCL.
#pragma once

#include <compare>
#include <cstdint>
#include <string_view>
#include <vector>

namespace octavo {

// Number of ranks along each axis of the mesh.
struct MeshShape {
  int64_t replicate = 1;
  int64_t shard = 1;
  int64_t tensor = 1;
  int64_t context = 1;
  int64_t pipeline = 1;
  // NOLINTNEXTLINE(modernize-use-nullptr): a false positive of clang-tidy 14
  auto operator<=>(const MeshShape&) const = default;

  int64_t data() const;    // Number of ranks that process different samples.
  int64_t shards() const;  // Number of ranks that share one replica of the parameters.
  int64_t ranks() const;
  // Returns the number of communicators for each kind of transfer between pipeline stages (StageData, parallel/mesh.h).
  // Consecutive stages send through different communicators. The first stage also follows the last one, so an odd
  // number of stages needs three communicators.
  int64_t link_colors() const { return 2 + pipeline % 2; }

  // Returns how many times as much data an all-to-all over the shards sends out of a machine as a ring does. A ring of
  // shards leaves each machine once, while in an all-to-all every shard of the machine sends its data out. The result
  // is 1 if all shards are on one machine, or if each is on a machine of its own.
  int64_t all_to_all_load(int64_t ranks_per_machine) const {
    if (shards() * tensor <= ranks_per_machine || tensor >= ranks_per_machine) return 1;
    return ranks_per_machine / tensor;
  }
};

// Value of a key that is true, false or auto. With auto a run decides by its available memory
// (app/resolve/memory_choice.h).
enum class AutoBool : uint8_t { kAuto, kTrue, kFalse };
constexpr AutoBool auto_bool(bool value) { return value ? AutoBool::kTrue : AutoBool::kFalse; }

// How NCCL accesses the tensors of a collective.
enum class NcclMemory : uint8_t {
  // Registered memory for the shard axis of a run on one machine, plain memory otherwise.
  kAuto,
  kPlain,  // NCCL copies through its own buffers.
  // NCCL accesses the tensors directly, in memory that all ranks of a group have mapped (symmetric windows).
  kRegistered,
};

// Order in which a pipeline stage runs forward and backward of the micro-batches of a step (model/pipeline_schedule.h).
enum class PipelineSchedule : uint8_t { kOneForwardOneBackward, kInterleaved, kZeroBubble };

struct ParallelConfig {
  // Number of ranks that shard the state. -1: all ranks that the other axes leave.
  int64_t data_parallel_shard = -1;
  // Number of replicas of the state. -1: all remaining ranks if data_parallel_shard is given; if both are -1, the run
  // chooses both (app/resolve/mesh_choice.h).
  int64_t data_parallel_replicate = -1;
  int64_t tensor_parallel = 1;
  int64_t context_parallel = 1;
  // Whether a rank frees the full weights of a unit after their use in forward and gathers them again in backward.
  AutoBool reshard_after_forward = AutoBool::kAuto;
  // Whether a rank keeps full float32 gradients over the micro-batches of a step and reduces them once.
  AutoBool accumulate_unsharded = AutoBool::kAuto;
  NcclMemory nccl_memory = NcclMemory::kAuto;
  double timeout_s = 600;  // Time limit of a collective in seconds. 0 disables it.
  // Number of pipeline stages, among which the blocks of the model are divided.
  int64_t pipeline_parallel = 1;
  // Number of chunks, each of consecutive blocks, that a pipeline stage has. More than 1 requires kInterleaved.
  int64_t pipeline_chunks = 1;
  // Number of blocks of each chunk: the first chunk of every pipeline stage, then the second chunk of every stage, and
  // so on. Empty: chunks with about equal work (model/parameters/pipeline_stages.h).
  std::vector<int64_t> pipeline_layers = {};
  PipelineSchedule pipeline_schedule = PipelineSchedule::kOneForwardOneBackward;

  // Returns the mesh for a run on `ranks` ranks. It has one replica if chooses_replicas(). Throws InputError unless the
  // sizes multiply to `ranks`.
  MeshShape mesh_shape(int64_t ranks) const;
  // Returns whether the sizes multiply to `ranks`.
  // Requires: each size is positive or -1.
  bool suits(int64_t ranks) const;
  // Returns whether the run chooses the number of replicas (app/resolve/mesh_choice.h).
  bool chooses_replicas() const { return data_parallel_shard == -1 && data_parallel_replicate == -1; }
  // Returns whether a run on GPUs registers its memory with NCCL.
  bool registers_memory(const MeshShape& mesh, bool one_machine) const;
  // Returns how many of `ranks` ranks process different samples.
  int64_t data_parallel_ranks(int64_t ranks) const { return mesh_shape(ranks).data(); }
};

enum class Axis : uint8_t { kPipeline, kReplicate, kShard, kContext, kTensor };

// One axis of the mesh. A new axis needs a row in kMeshAxes, a member in ParallelConfig and in MeshShape, and the
// collectives along the axis.
struct MeshAxis {
  const char* name;  // Name of the axis in plans and messages.
  const char* key;   // Key of its size in the config section `parallel`.
  int64_t ParallelConfig::*configured;
  int64_t MeshShape::*size;
  bool divides_samples;  // Whether the axis' ranks process different samples.
  // Whether the axis' ranks process different tokens, of equal or different samples.
  bool divides_tokens;
  // Whether the axis' ranks divide one replica of the parameters and optimizer states among themselves.
  bool shards_state;
  // Whether the axis' ranks have different blocks of the model.
  bool divides_blocks;
  // Whether messages name the axis even when its size is 1.
  bool always_named;
};

// Axes in the order of Axis, outermost first. Ranks that are neighbours along the last axis are neighbours on one
// machine; ranks along the first axis may be far apart. The first axis is the pipeline, because stages exchange little:
// only boundary activations and their gradients.
inline constexpr MeshAxis kMeshAxes[] = {
    {"pipeline", "pipeline_parallel", &ParallelConfig::pipeline_parallel, &MeshShape::pipeline, false, false, false,
     true, false},
    {"replicate", "data_parallel_replicate", &ParallelConfig::data_parallel_replicate, &MeshShape::replicate, true,
     true, false, false, true},
    {"shard", "data_parallel_shard", &ParallelConfig::data_parallel_shard, &MeshShape::shard, true, true, true, false,
     true},
    {"context", "context_parallel", &ParallelConfig::context_parallel, &MeshShape::context, false, true, true, false,
     false},
    {"tensor", "tensor_parallel", &ParallelConfig::tensor_parallel, &MeshShape::tensor, false, false, false, false,
     true},
};

// Returns whether the ranks of a communication group have different positions on an axis. The groups "world", "tokens"
// (ranks that process different tokens), "micro-batch" (ranks that process the same samples) and "shard" (ranks that
// share one replica of the state) may span several axes. Except "world", they are within a pipeline stage. Every other
// group has the name of the one axis that it spans.
constexpr bool spans(std::string_view group, const MeshAxis& axis) {
  if (group == "world") return true;
  if (group == "tokens") return axis.divides_tokens;
  if (group == "micro-batch") return !axis.divides_samples && !axis.divides_blocks;
  if (group == "shard") return axis.shards_state;
  return group == axis.name;
}
// Axes whose configured size may be -1. The first of them whose size is -1 gets all ranks that the other axes leave.
inline constexpr Axis kFillingAxes[] = {Axis::kShard, Axis::kReplicate};
// Returns the axis that gets the remaining ranks. Null if all sizes are given.
const MeshAxis* filling_axis(const ParallelConfig& config);

}  // namespace octavo

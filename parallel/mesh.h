// Mesh arranges the ranks of a run along the axes of kMeshAxes (parallel/config.h), as one rank sees them, and owns a
// communicator for each group of ranks that communicate. The first axis is the outermost. If the axes after pipeline
// have sizes r, s, c and t, rank = (((pipeline * r + replicate) * s + shard) * c + context) * t + tensor. An axis of
// size 1 costs nothing.
//
// Ranks along the context axis share each sequence (core/sequence_chunks.h). They process different tokens, so their
// parameter gradients are summed like those of data-parallel ranks: one replica of the state is sharded over the shard
// axis and the context axis together, and gradients are reduced over both at once.
//
// Collectives of several axes may be in progress at once on different streams, provided that every rank issues the
// collectives of all axes in the same order from one thread. Otherwise two ranks could wait for each other in
// collectives of two axes. On a GPU, NCCL is configured to launch kernels in that order too (communicator_nccl.cpp).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "core/sequence_chunks.h"
#include "core/stream.h"
#include "parallel/communicator.h"
#include "parallel/config.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

// Kind of a transfer between neighbouring pipeline stages. Activations go to the next stage, gradients to the previous
// one. The last and the first stage are neighbours if stages have several chunks.
enum class StageData : uint8_t { kActivations, kGradients };

class Mesh {
 public:
  // Creates the mesh. A collective of all ranks of `group`. Groups with equal ranks share one communicator unless their
  // collectives overlap. The communicators accept tensors on the device of `stream` and any stream of this device.
  // Throws InputError on every rank unless the axis sizes multiply to the number of ranks.
  // Requires: `group` and `stream` outlive the mesh.
  Mesh(const ParallelConfig& config, ProcessGroup& group, Stream& stream);
  // Creates one rank of a mesh whose other ranks do not exist, for a plan. Collectives of several ranks are recorded on
  // a dry-run stream and throw on any other stream.
  // Requires: `stream` and `watchdog` outlive the mesh.
  Mesh(const MeshShape& shape, int64_t all_to_all_load, Stream& stream, Watchdog& watchdog, int64_t rank = 0);

  const MeshShape& shape() const { return shape_; }
  // Returns MeshShape::all_to_all_load() for the machines of this run.
  int64_t all_to_all_load() const { return all_to_all_load_; }
  // Returns the stream on which the model of this rank computes.
  Stream& stream() const { return *stream_; }
  // Returns this rank's position on an axis.
  int64_t rank(Axis axis) const { return places_[static_cast<size_t>(axis)]; }
  // Returns this rank's position among the shape().data() ranks that read different samples.
  int64_t data_rank() const { return rank(Axis::kReplicate) * shape_.shard + rank(Axis::kShard); }
  // Returns this rank's position among the ranks that share its sequences.
  ContextRank context_rank() const { return {.rank = rank(Axis::kContext), .size = shape_.context}; }

  // Returns this rank's group along an axis.
  Communicator& along(Axis axis) const { return group(kMeshAxes[static_cast<size_t>(axis)].name); }
  // Returns the group of ranks that hold the same shard.
  Communicator& replicate() const { return along(Axis::kReplicate); }
  // Returns the group of ranks that share one replica of the state.
  Communicator& shard() const { return along(Axis::kShard); }
  // Returns the group of ranks that share each sequence.
  Communicator& context() const { return along(Axis::kContext); }
  Communicator& tensor() const { return along(Axis::kTensor); }  // Returns the group of ranks that divide each layer.
  Communicator& tokens() const { return group("tokens"); }  // Returns the group of ranks that process different tokens.
  // Returns the group of ranks that process the same samples.
  Communicator& micro_batch() const { return group("micro-batch"); }
  Communicator& world() const { return group("world"); }  // Returns the group of all ranks.
  // Returns the group of ranks that differ only in their pipeline stage.
  Communicator& pipeline() const { return along(Axis::kPipeline); }
  // Returns the communicator of the ranks of pipeline() through which stage `sender` sends `data`. All kinds and
  // directions of a rank's transfers have different communicators, so that none of these transfers waits for another.
  // Requires: there are several stages.
  Communicator& stage_link(StageData data, int64_t sender) const {
    return *stage_links_[static_cast<size_t>(static_cast<int64_t>(data) * shape_.link_colors() + link_color(sender))];
  }
  // Returns the number, less than MeshShape::link_colors(), of the communicator through which a stage sends.
  int64_t link_color(int64_t sender) const {
    return sender + 1 == shape_.pipeline ? shape_.link_colors() - 1 : sender % 2;
  }

  // Tells the watchdog that the pipeline stages have reached the same point of a step. Does nothing with one stage.
  void meet_stages() const {
    if (shape_.pipeline > 1) watchdog_->begin_interval();
  }

  // Registers memory from allocate_for_collectives() with the communicators that `how` selects. A collective.
  // Requires: the registrations are destroyed before the memory.
  std::vector<Registration> register_memory(const Buffer& memory, NcclMemory how);

 private:
  // Multiprocessors of a transfer between stages. A receive that starts early occupies them until the data arrives.
  // NCCL would take up to 32, which made forward matmuls 6% and attention 13% slower (docs/benchmarks/sharding.md).
  static constexpr int kLinkMultiprocessors = 4;
  using MakeCommunicator = std::function<std::unique_ptr<Communicator>(const RankGroup& ranks)>;
  void find_places(int64_t rank);
  // Creates the communicators. If `shares`, groups with equal ranks share one unless their collectives overlap.
  void connect(bool shares, const MakeCommunicator& make);
  RankGroup ranks_of(const char* group) const;
  bool are_same(std::string_view group, std::string_view other) const;
  Communicator& group(std::string_view name) const { return *groups_.find(name)->second; }

  MeshShape shape_;
  int64_t all_to_all_load_ = 1;
  Stream* stream_;
  Watchdog* watchdog_;
  std::array<int64_t, std::size(kMeshAxes)> places_ = {};
  // The communicator of all ranks is the last to be destroyed.
  std::list<std::unique_ptr<Communicator>> communicators_;
  std::map<std::string_view, Communicator*> groups_;
  std::vector<Communicator*> stage_links_;  // Empty with a single pipeline stage.
};

}  // namespace octavo

// Mesh: the ranks of a run arranged along the axes of kMeshAxes (parallel/config.h), seen from one of them, with a
// communicator for each group of ranks that communicate. The first axis is the outermost: with sizes r, s, c and t,
// rank = ((replicate * s + shard) * c + context) * t + tensor. An axis of size 1 costs nothing.
//
// Ranks along the context axis share each sequence (core/sequence_pieces.h). They work on different tokens, so to the
// parameters they are as ranks of other samples: one copy of the state is sharded over the shard and the context axis,
// and its gradients are reduced over both at once.
//
// Collectives of several axes may be under way at once, on different streams, provided that every rank issues those of
// all axes in one order, from one thread: a rank then never waits in one axis for a rank that waits for it in another.
// On a GPU, NCCL is told to begin their kernels in that order too (communicator_nccl.cpp).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "core/sequence_pieces.h"
#include "core/stream.h"
#include "parallel/communicator.h"
#include "parallel/config.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

class Mesh {
 public:
  // A collective of all ranks of `group`. Groups with the same ranks share a communicator. The communicators are for
  // tensors on the device of `stream`, on any of its streams. `group` and `stream` must outlive the mesh. Throws
  // InputError on every rank alike unless the axes multiply to the ranks there are.
  Mesh(const ParallelConfig& config, ProcessGroup& group, Stream& stream);
  // One rank of a mesh whose other ranks do not exist. Its collectives are recorded on a planned stream and throw on
  // any other stream if they have several ranks. `stream` and `watchdog` must outlive the mesh.
  Mesh(const MeshShape& shape, int64_t all_to_all_load, Stream& stream, Watchdog& watchdog, int64_t rank = 0);

  const MeshShape& shape() const { return shape_; }
  // MeshShape::all_to_all_load() on the machines of this run.
  int64_t all_to_all_load() const { return all_to_all_load_; }
  // The stream on which the model of this rank computes.
  Stream& stream() const { return *stream_; }
  // This rank's place on an axis.
  int64_t rank(Axis axis) const { return places_[static_cast<size_t>(axis)]; }
  // This rank's place among the shape().data() ranks that read different samples.
  int64_t data_rank() const { return tokens().rank() / shape_.context; }
  // This rank's place among the ranks that share its sequences.
  ContextRank context_rank() const { return {.rank = rank(Axis::kContext), .size = shape_.context}; }

  // The group of this rank that is named after an axis.
  Communicator& along(Axis axis) const { return group(kMeshAxes[static_cast<size_t>(axis)].name); }
  Communicator& replicate() const { return along(Axis::kReplicate); }  // ranks that hold the same shard
  Communicator& shard() const { return along(Axis::kShard); }          // ranks that share one copy of the state
  Communicator& context() const { return along(Axis::kContext); }      // ranks that share each sequence
  Communicator& tensor() const { return along(Axis::kTensor); }        // ranks that divide each layer
  Communicator& tokens() const { return group("tokens"); }             // ranks that work on different tokens
  Communicator& micro_batch() const { return group("micro-batch"); }   // ranks that work on the same samples
  Communicator& world() const { return group("world"); }               // all ranks

  // Registers memory, from allocate_for_collectives(), with the axes that `how` says. A collective; the registrations
  // must end before the memory.
  std::vector<std::unique_ptr<Registration>> register_memory(const Buffer& memory, NcclMemory how);

 private:
  using MakeCommunicator = std::function<std::unique_ptr<Communicator>(const RankGroup& ranks)>;
  void find_places(int64_t rank);
  // Makes the communicators, or takes those with the same ranks where groups share them.
  void connect(bool shares, const MakeCommunicator& make);
  RankGroup ranks_of(const char* group) const;
  bool are_same(std::string_view group, std::string_view other) const;
  Communicator& group(std::string_view name) const { return *groups_.find(name)->second; }

  MeshShape shape_;
  int64_t all_to_all_load_ = 1;
  Stream* stream_;
  std::array<int64_t, std::size(kMeshAxes)> places_ = {};
  std::list<std::unique_ptr<Communicator>> communicators_;  // that of all ranks is the last to be destroyed
  std::map<std::string_view, Communicator*> groups_;
};

}  // namespace octavo

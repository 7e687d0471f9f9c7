// Mesh: the ranks of a run arranged along the axes of kMeshAxes (parallel/config.h), and a communicator for each. The
// first axis is the outermost: with sizes r, s, c and t, rank = ((replicate * s + shard) * c + context) * t + tensor.
// An axis of size 1 costs nothing, and groups of the same ranks share a communicator.
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
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/sequence_pieces.h"
#include "core/stream.h"
#include "parallel/communicator.h"
#include "parallel/config.h"
#include "parallel/ranks/machines.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

class Mesh {
 public:
  // A collective of all ranks of `group`, which must outlive it. The communicators are for tensors on `stream`'s
  // device, on any of its streams. Throws InputError on every rank alike unless the axes multiply to the ranks there
  // are.
  Mesh(const ParallelConfig& config, ProcessGroup& group, Stream& stream);

  const MeshShape& shape() const { return shape_; }
  // This rank's place on an axis.
  int64_t rank(Axis axis) const { return places_[static_cast<size_t>(axis)]; }

  // Its place among those that read different samples.
  int64_t data_rank() const { return tokens_->rank() / shape_.context; }
  // And among those that share its sequences.
  ContextRank context_rank() const { return {.rank = rank(Axis::kContext), .size = shape_.context}; }

  // Groups of ranks that this one belongs to.
  Communicator& replicate() { return *replicate_; }      // they hold the same shard
  Communicator& shard() { return *shard_; }              // they share one copy of the optimizer state
  Communicator& context() { return *context_; }          // they share each sequence
  Communicator& tensor() { return *tensor_; }            // they split each layer
  Communicator& tokens() { return *tokens_; }            // they work on different tokens
  Communicator& micro_batch() { return *micro_batch_; }  // they work on the same samples
  Communicator& world() { return *world_; }              // all ranks

  // Which ranks run on which machine.
  const Machines& machines() const { return machines_; }

  // Registers memory, from allocate_for_collectives(), with the axes that `how` says. A collective; the registrations
  // must end before the memory.
  std::vector<std::unique_ptr<Registration>> register_memory(const Buffer& memory, NcclMemory how);

 private:
  static constexpr size_t kAxes = std::size(kMeshAxes);
  using AxisSet = std::array<bool, kAxes>;

  // The places of a rank on the axes.
  std::array<int64_t, kAxes> places_of(int64_t rank) const;
  // Of the ranks that differ from this one in their places on `axes` alone.
  Communicator* connect(const char* name, AxisSet axes, ProcessGroup& group, Stream& stream);

  Machines machines_;
  MeshShape shape_;
  std::array<int64_t, kAxes> places_ = {};
  std::map<AxisSet, std::unique_ptr<Communicator>> communicators_;  // by the axes of more than one rank
  Communicator* world_ = nullptr;                                   // of which the others are parts
  Communicator *replicate_, *shard_, *context_, *tensor_, *tokens_, *micro_batch_;
};

}  // namespace octavo

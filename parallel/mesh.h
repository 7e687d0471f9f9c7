// Mesh: the ranks of a run arranged along the axes of kMeshAxes (parallel/config.h), and a communicator for each. The
// first axis is the outermost: with sizes r, s and t, rank = (replicate * s + shard) * t + tensor. An axis of size 1
// costs nothing, and axes with the same ranks share a communicator.
//
// Collectives of several axes may be under way at once, on different streams, provided that every rank issues those of
// all axes in one order, from one thread: a rank then never waits in one axis for a rank that waits for it in another.
// On a GPU, NCCL is told to begin their kernels in that order too (communicator_nccl.cpp).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "core/stream.h"
#include "parallel/communicator.h"
#include "parallel/config.h"
#include "parallel/process_group.h"

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

  // The ranks that differ from this one in their place on `axis` alone.
  Communicator& along(Axis axis) { return *along_[static_cast<size_t>(axis)]; }
  Communicator& replicate() { return along(Axis::kReplicate); }  // they hold the same shard
  Communicator& shard() { return along(Axis::kShard); }          // they share one copy of the optimizer state
  Communicator& tensor() { return along(Axis::kTensor); }        // they split each layer
  Communicator& data() { return *data_; }                        // the ranks that read different samples
  Communicator& world() { return *world_; }                      // all ranks

  // Registers memory, from allocate_for_collectives(), with the axes that `how` says. A collective; the registrations
  // must end before the memory.
  std::vector<std::unique_ptr<Registration>> register_memory(const Buffer& memory, NcclMemory how);

 private:
  static constexpr size_t kAxes = std::size(kMeshAxes);
  using AxisSet = std::array<bool, kAxes>;

  // Of the ranks that differ from this one in their places on `axes` alone.
  Communicator* connect(const char* name, AxisSet axes, const ParallelConfig& config, ProcessGroup& group,
                        Stream& stream);

  MeshShape shape_;
  std::array<int64_t, kAxes> places_ = {};
  std::map<AxisSet, std::unique_ptr<Communicator>> communicators_;  // by the axes of more than one rank
  std::array<Communicator*, kAxes> along_ = {};
  Communicator* data_ = nullptr;
  Communicator* world_ = nullptr;
};

}  // namespace octavo

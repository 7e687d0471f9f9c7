// Mesh: the ranks of a run arranged along three axes, and a communicator for each. Outermost first they are replicate,
// shard and tensor: rank = (replicate * shard_size + shard) * tensor_size + tensor, so that the tensor-parallel ranks
// are neighbours on one machine and the copies of the model may lie far apart. An axis of size 1 costs nothing, and
// axes with the same ranks share a communicator.
//
// Collectives of several axes may be under way at once, on different streams, provided that every rank issues those of
// all axes in one order, from one thread: a rank then never waits in one axis for a rank that waits for it in another.
// On a GPU, NCCL is told to begin their kernels in that order too (communicator_nccl.cpp).
#pragma once

#include <cstdint>
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
  // This rank's place on the axes.
  int64_t replicate_rank() const { return replicate_rank_; }
  int64_t shard_rank() const { return shard_rank_; }
  int64_t tensor_rank() const { return tensor_rank_; }
  int64_t data_rank() const { return replicate_rank_ * shape_.shard + shard_rank_; }

  Communicator& tensor() { return *tensor_; }        // the ranks that split each layer
  Communicator& shard() { return *shard_; }          // the ranks that share one copy of the optimizer state
  Communicator& replicate() { return *replicate_; }  // the ranks that hold the same shard
  Communicator& data() { return *data_; }            // the ranks that read different samples: replicate x shard
  Communicator& world() { return *world_; }          // all ranks

  // Registers memory, from allocate_for_collectives(), with the axes that `how` says. A collective; the registrations
  // must end before the memory.
  std::vector<std::unique_ptr<Registration>> register_memory(const Buffer& memory, NcclMemory how);

 private:
  MeshShape shape_;
  int64_t replicate_rank_ = 0;
  int64_t shard_rank_ = 0;
  int64_t tensor_rank_ = 0;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  Communicator* world_ = nullptr;
  Communicator* data_ = nullptr;
  Communicator* shard_ = nullptr;
  Communicator* replicate_ = nullptr;
  Communicator* tensor_ = nullptr;
};

}  // namespace octavo

// Communicator: collectives on tensors among the ranks of one axis of the mesh. MPI on CPUs, NCCL on GPUs, nothing for
// a group of one. Every method is a collective: all ranks of the group call it in the same order with equal shapes. On
// a GPU the work is queued on `stream` and the host goes on; on the CPU it is done on return.
//
// Bytes per rank and direction, n ranks: all_reduce 2 (n-1)/n of the tensor, broadcast the tensor.
#pragma once

#include <memory>

#include "kernels/core/stream.h"
#include "parallel/process_group.h"

namespace octavo {

class Communicator {
 public:
  virtual ~Communicator() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // tensor = the sum over ranks, in place; float32. The same bits on every rank; the order of the sum, and so its last
  // bits, depend on the number of ranks.
  virtual void all_reduce_sum(const Tensor& tensor, Stream& stream) = 0;
  // tensor = the largest of each element over ranks, in place; float32.
  virtual void all_reduce_max(const Tensor& tensor, Stream& stream) = 0;
  // tensor = root's, in place; any dtype.
  virtual void broadcast(const Tensor& tensor, int root, Stream& stream) = 0;

 protected:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}

 private:
  int rank_;
  int size_;
};

// The communicator of all ranks of `group` for tensors on `stream`'s device. `group` must outlive it.
std::unique_ptr<Communicator> make_communicator(ProcessGroup& group, Stream& stream);

}  // namespace octavo

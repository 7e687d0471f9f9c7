// Communicator runs collectives on tensors among the ranks of a group, usually one axis of the mesh. It uses MPI on
// CPUs, NCCL on GPUs, and plain copies in a group of one rank. Every method is a collective: all ranks of the group
// call the same methods in the same order with equal shapes. Exceptions are send(), receive() and exchange(), which
// only two ranks call. On a GPU a collective is queued on `stream` and the call returns at once. On the CPU the
// collective is complete on return. Tensors may have any number of elements. Methods throw Error when shapes, dtypes or
// addresses do not fit together, or when MPI or NCCL reports a failure.
//
// `what` names the tensor in messages ("gradients of block 3"). The watchdog (parallel/ranks/watchdog.h) ends the run
// with a message that names the collective if the collective takes longer than parallel.timeout_s.
// Requires: `what`, which is borrowed, outlives the communicator.
//
// Each of n ranks sends, and also receives, (n-1)/n of the large tensor in an all_gather or a reduce_scatter, (n-1)/n
// of `out` in an all_to_all, 2 (n-1)/n of the tensor in an all_reduce, and the whole tensor in an exchange.
//
// On the CPU a sum adds the ranks' terms in rank order in float32, and a bfloat16 sum is rounded once at the end. An
// all-reduce therefore equals a reduce-scatter followed by an all-gather, bit for bit. On a GPU the order of the terms
// depends on the algorithm that NCCL chooses for the size and the machine, and a bfloat16 sum may be rounded at every
// addition. On both, repeating a call gives the same bits, and all ranks get the same bits.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "core/arena.h"
#include "core/stream.h"
#include "parallel/config.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

// Memory that stays registered with a communicator until this object is destroyed.
// Requires: the communicator outlives the object.
using Registration = std::unique_ptr<void, std::function<void(void* handle)>>;

// Group of ranks, as one of its members sees the group. Ranks with equal `color` form a group, in which this rank has
// the number `rank`.
struct RankGroup {
  std::string name;
  int color = 0;
  int rank = 0;
  int size = 1;
  // Largest number of multiprocessors that a transfer of the group takes on a GPU. 0 leaves the choice to NCCL.
  int max_multiprocessors = 0;
};

class Communicator {
 public:
  // Constructs a communicator that transfers nothing. In a group of one rank, its collectives are copies. In a larger
  // group, which only a dry run has, they are recorded on a dry-run stream and throw on any other stream.
  Communicator(Watchdog& watchdog, std::string name, int rank, int size)
      : watchdog_(watchdog), name_(std::move(name)), rank_(rank), size_(size) {}
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Returns the name of the group, which is usually an axis of the mesh, such as "tensor" or "shard".
  const std::string& name() const { return name_; }
  int rank() const { return rank_; }  // Returns this rank's number within the group.
  int size() const { return size_; }

  // Gathers the shards [k] of all ranks in rank order into out [n * k elements]. Any dtype.
  // Requires: `shard` has the dtype of `out`, and is this rank's slice of `out` or does not overlap `out`.
  void all_gather(const Tensor& out, const Tensor& shard, Stream& stream, const char* what = "");
  // Sets out [k elements] = this rank's slice of the sum over ranks of `in` [n * k]. Does not change other slices.
  // Requires: both are float32 or both bfloat16, and `out` is this rank's slice of `in` or does not overlap `in`.
  void reduce_scatter_sum(const Tensor& out, const Tensor& in, Stream& stream, const char* what = "");
  // Sets out [n * count] = elements [begin, begin + count) of this rank's slice of every rank's `in` [n * k], in rank
  // order.
  // Requires: `out` and `in` have one dtype and do not overlap.
  void all_to_all(const Tensor& out, const Tensor& in, int64_t begin, Stream& stream, const char* what = "");
  // Sends `in` to rank `peer`, and receives into `out` what `peer` sends. Only these two ranks call the method.
  // Requires: dtype and number of elements are equal on both ranks, and `out` and `in` do not overlap.
  void exchange(const Tensor& out, const Tensor& in, int peer, Stream& stream, const char* what = "");
  // Send the tensor to rank `to`, or receive into the tensor what rank `from` sends. Any dtype. Rank a's n-th send() to
  // rank b matches b's n-th receive() from a. On the CPU the call starts a transfer, which finish_transfer() completes.
  // Requires: tensors of equal sizes. Until finish_transfer(), no other transfer begins and the tensor is not used.
  void send(const Tensor& tensor, int to, Stream& stream, const char* what = "");
  void receive(const Tensor& tensor, int from, Stream& stream, const char* what = "");
  // On the CPU, waits for the last send() or receive() if it is not complete. Does nothing on a GPU, where the stream
  // orders transfers.
  void finish_transfer(const char* what = "");
  // Replaces the tensor with its sum over ranks. Float32 or bfloat16.
  void all_reduce_sum(const Tensor& tensor, Stream& stream, const char* what = "");
  // Replaces each element with its maximum over ranks. Float32 values are compared by their bits as unsigned integers,
  // so NaN is larger than all numbers. If a rank has a negative value, the result is the value of one of the ranks, but
  // need not be the maximum. Amaxes and scales are never negative.
  void all_reduce_max(const Tensor& tensor, Stream& stream, const char* what = "");

  // Registers memory from allocate_for_collectives(), so that NCCL accesses the memory directly instead of through
  // NCCL's own buffers (ParallelConfig::nccl_memory). This is a collective of the group, and the host waits for it.
  // Returns null if this communicator cannot register memory.
  // Requires: sizes are equal on all ranks, and later collectives find each tensor at the same offset on all ranks.
  [[nodiscard]] virtual Registration register_memory(const Buffer&) { return {}; }

  // Returns a communicator of the group `ranks`, whose members are ranks of this communicator.
  // Requires: all ranks of this communicator call this method, and none of its collectives is in progress.
  [[nodiscard]] std::unique_ptr<Communicator> split(const RankGroup& ranks);

 protected:
  Watchdog& watchdog() const { return watchdog_; }

 private:
  Collective collective(const char* op, const char* what) const { return {op, what, name_.c_str()}; }
  // Checks that `part` has the size of one rank's slice of `whole`, and that it either is this rank's slice of `whole`
  // or does not overlap `whole`.
  void check_slice(const Collective& call, const Tensor& whole, const Tensor& part) const;
  void check_peer(const Collective& call, int peer) const;
  // Runs `work`, which performs the collective. The profiler times it and the watchdog watches it.
  template <typename Work>
  void run(const Collective& call, const Tensor& tensor, Stream& stream, Work work);
  [[noreturn]] void refuse() const;

  // Implementations of the collectives. Shapes, dtypes and addresses have been checked, and the group has several
  // ranks.
  virtual void do_all_gather(const Tensor& /*out*/, const Tensor& /*shard*/, Stream& /*stream*/) { refuse(); }
  virtual void do_reduce_scatter_sum(const Tensor& /*out*/, const Tensor& /*in*/, Stream& /*stream*/) { refuse(); }
  virtual void do_all_to_all(const Tensor& /*out*/, const Tensor& /*in*/, int64_t /*begin*/, Stream& /*stream*/) {
    refuse();
  }
  virtual void do_exchange(const Tensor& /*out*/, const Tensor& /*in*/, int /*peer*/, Stream& /*stream*/) { refuse(); }
  virtual void do_send(const Tensor& /*tensor*/, int /*to*/, Stream& /*stream*/) { refuse(); }
  virtual void do_receive(const Tensor& /*tensor*/, int /*from*/, Stream& /*stream*/) { refuse(); }
  // Returns whether the host must wait for a transfer, in do_finish_transfer().
  virtual bool has_transfer() const { return false; }
  virtual void do_finish_transfer() {}
  virtual void do_all_reduce_sum(const Tensor& /*tensor*/, Stream& /*stream*/) { refuse(); }
  virtual void do_all_reduce_max(const Tensor& /*tensor*/, Stream& /*stream*/) { refuse(); }
  // Implements split() for a group of several ranks.
  virtual std::unique_ptr<Communicator> do_split(const RankGroup& /*ranks*/) { refuse(); }
  // Called after a collective has been queued on the stream, which may be before the collective is complete.
  virtual void after_queueing(const Collective&, Stream&) {}

  Watchdog& watchdog_;
  std::string name_;
  int rank_;
  int size_;
};

// Returns the communicator of all ranks for tensors on the device of `stream`.
// Requires: all ranks of `group` call this function, and `group` outlives the communicator.
std::unique_ptr<Communicator> make_communicator(ProcessGroup& group, Stream& stream);

// Allocates zeroed GPU memory that can be registered with communicators.
Buffer allocate_for_collectives(int64_t bytes);

// Returns the version of NCCL that this process has loaded, such as "2.28.9". Empty in a build without CUDA.
std::string nccl_version();

}  // namespace octavo

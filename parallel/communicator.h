// Communicator: collectives on tensors among the ranks of one axis of the mesh. MPI on CPUs, NCCL on GPUs, copies for a
// group of one. Every method is a collective: all ranks of the group call it in the same order with equal shapes. On a
// GPU the work is queued on `stream` and the host goes on; on the CPU it is done on return. Tensors may have any number
// of elements. Throws Error when shapes, dtypes or places do not fit together, or when MPI or NCCL reports a failure.
//
// `what` says in messages whose tensor it is ("gradients of block 3"); it must outlive the communicator. A collective
// that takes longer than parallel.timeout_s ends the run, with a message that names it (parallel/ranks/watchdog.h).
//
// Bytes sent by each rank of n (and received, as many): all_gather and reduce_scatter (n-1)/n of the large tensor,
// all_to_all (n-1)/n of what it puts together, all_reduce 2 (n-1)/n of the tensor, send_receive all of it.
//
// Sums: on the CPU the ranks' terms are added one by one in rank order in float32, a bfloat16 sum is rounded once at
// the end; so an all-reduce is bit for bit a reduce-scatter and an all-gather. On a GPU the order is that of NCCL's
// algorithm for the size and the machine, and a bfloat16 sum may be rounded at every addition. Either way the same
// call gives the same bits again, and the same bits on every rank.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "core/arena.h"
#include "core/stream.h"
#include "parallel/config.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

// Memory registered with a communicator, until destroyed; the communicator must outlive it.
class Registration {
 public:
  virtual ~Registration() = default;
};

// Some of the ranks, seen from one of them: all with the same `color` form a group, in which this one is `rank`.
struct RankGroup {
  std::string name;
  int color = 0;
  int rank = 0;
  int size = 1;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  const std::string& name() const { return name_; }  // of the axis: "world", "data", "shard"
  int rank() const { return rank_; }                 // in the group
  int size() const { return size_; }

  // out [n * k elements] = the shards [k] of all ranks in rank order; any dtype, the same for both. `shard` is this
  // rank's slice of `out` itself, or lies apart from it.
  void all_gather(const Tensor& out, const Tensor& shard, Stream& stream, const char* what = "");
  // out [k elements] = this rank's slice of the sum over ranks of `in` [n * k]; float32 or bfloat16, the same for both.
  // `out` is this rank's slice of `in` itself, or lies apart from it. The other slices of `in` are left as they are.
  void reduce_scatter_sum(const Tensor& out, const Tensor& in, Stream& stream, const char* what = "");
  // out [n * count] = elements [begin, begin + count) of this rank's slice of every rank's `in` [n * k], in rank order;
  // any dtype, the same for both. The two lie apart.
  void all_to_all(const Tensor& out, const Tensor& in, int64_t begin, Stream& stream, const char* what = "");
  // out = `in` of rank `from`, while this rank's `in` goes to rank `to`, whose `from` it is; either may be kNobody. Any
  // dtype and number of elements, the same on all ranks. The two lie apart.
  static constexpr int kNobody = -1;
  void send_receive(const Tensor& out, int from, const Tensor& in, int to, Stream& stream, const char* what = "");
  // tensor = the sum over ranks, in place; float32 or bfloat16.
  void all_reduce_sum(const Tensor& tensor, Stream& stream, const char* what = "");
  // tensor = the largest of each element over ranks, in place; float32, compared by its bits as unsigned integers: of
  // magnitudes (amaxes, scales) the largest, above which NaN is; of any numbers one that some rank has.
  void all_reduce_max(const Tensor& tensor, Stream& stream, const char* what = "");

  // Lets NCCL reach memory from allocate_for_collectives() without its own buffers (ParallelConfig::nccl_memory). A
  // collective, with equal sizes and equal places of the tensors in them afterwards; the host waits. Null where there
  // is nothing to register with.
  [[nodiscard]] virtual std::unique_ptr<Registration> register_memory(const Buffer&) { return nullptr; }

  // The communicator of some of this one's ranks, with the same settings. A collective of all of its ranks, while none
  // of its other collectives is under way.
  [[nodiscard]] std::unique_ptr<Communicator> split(const RankGroup& ranks);

 protected:
  Communicator(Watchdog& watchdog, std::string name, int rank, int size)
      : watchdog_(watchdog), name_(std::move(name)), rank_(rank), size_(size) {}

  Watchdog& watchdog() const { return watchdog_; }

 private:
  // Does `work` named and watched as this collective.
  template <typename Work>
  void run(const char* op, const char* what, const Tensor& tensor, Stream& stream, Work work);

  // Shapes, dtypes and places are checked, and the group has several ranks.
  virtual void do_all_gather(const Tensor& out, const Tensor& shard, Stream& stream) = 0;
  virtual void do_reduce_scatter_sum(const Tensor& out, const Tensor& in, Stream& stream) = 0;
  virtual void do_all_to_all(const Tensor& out, const Tensor& in, int64_t begin, Stream& stream) = 0;
  virtual void do_send_receive(const Tensor& out, int from, const Tensor& in, int to, Stream& stream) = 0;
  virtual void do_all_reduce_sum(const Tensor& tensor, Stream& stream) = 0;
  virtual void do_all_reduce_max(const Tensor& tensor, Stream& stream) = 0;
  // Of several ranks.
  virtual std::unique_ptr<Communicator> do_split(const RankGroup& ranks) = 0;
  // Called after each of the collectives: it is on the stream, not done.
  virtual void after_queueing(const Collective&, Stream&) {}

  Watchdog& watchdog_;
  std::string name_;
  int rank_;
  int size_;
};

// The communicator of all ranks for tensors on `stream`'s device. A collective of all ranks of `group`, which must
// outlive it.
std::unique_ptr<Communicator> make_communicator(ProcessGroup& group, Stream& stream);

// For planning: a communicator that says whose rank it is among how many. On a planned stream its collectives are
// recorded, on any other they throw.
std::unique_ptr<Communicator> make_planned_communicator(Watchdog& watchdog, const RankGroup& ranks);

// Zeroed memory of a GPU that can be registered with communicators.
Buffer allocate_for_collectives(int64_t bytes);

// The version of NCCL that this process has loaded, "2.28.9"; empty in a build without CUDA.
std::string nccl_version();

}  // namespace octavo

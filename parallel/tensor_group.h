// TensorGroup is the group of ranks that divide each layer of a model (tensor parallelism) and share its tokens between
// the layers (sequence parallelism, Korthikanti et al., arXiv 2205.05198). GEMMs read and write all `tokens` of a
// micro-batch. Everything between the GEMMs processes only this rank's share, 1/size of the tokens. Tokens are gathered
// before a GEMM whose output features are divided, and partial sums are reduced and scattered after a GEMM whose input
// features are divided.
//
// Both collectives overlap with the GEMMs because both are split into `chunks` chunks of tokens: one chunk is
// transferred while a GEMM processes another. Each chunk is divided among the ranks in rank order, with n = tokens /
// (chunks * size):
//
//     token i of chunk c of a rank's share  =  token (c * size + rank) * n + i
//
// Work that may run later (weight gradients) can be deferred. It is queued next to the following collective that the
// compute stream would otherwise only wait for.
//
// Collectives run on a separate stream; events order it with the given compute stream. All methods are collectives of
// the group in the sense of Communicator. Callers check alone() and do not call the collectives in a group of one rank.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "core/stream.h"
#include "parallel/communicator.h"

namespace octavo {

struct TensorGroupOptions {
  // Borrowed communicator of the group. Null means a group of one rank.
  Communicator* ranks = nullptr;
  // Number of chunks. Reduced until the tokens are divisible, and divisible in multiples of 16 if the share is.
  int64_t chunks = 1;
  // Multiprocessors that a GEMM may use while it overlaps with a collective, which needs some as well. 0: all.
  int overlap_multiprocessors = 0;
};

class TensorGroup {
 public:
  // `options.ranks` and `compute` must outlive the group.
  TensorGroup(const TensorGroupOptions& options, int64_t tokens, Stream& compute);

  int rank() const { return ranks_ != nullptr ? ranks_->rank() : 0; }
  int size() const { return ranks_ != nullptr ? ranks_->size() : 1; }
  bool alone() const { return size() == 1; }
  // Returns the stream on which the collectives run.
  Stream& transfers() { return transfers_; }

  // Function that queues work on rows [begin, end) of all tokens.
  using Work = std::function<void(int64_t begin, int64_t end)>;

  // Gathers the shares [tokens / size, width] of all ranks into all [tokens, width]; any dtype. If `work` is given, it
  // is called for one chunk after the other and queues work on the compute stream, which waits for the rows of that
  // chunk first. Without `work` the compute stream waits for all rows.
  void gather(const Tensor& all, const Tensor& share, const char* what, const Work& work = {});

  // Sets share [tokens / size, width] = this rank's rows of the sum over ranks of all [tokens, width]; float32 or
  // bfloat16. If `work` is given, it is called for one chunk after the other to queue the computation of `all` on the
  // compute stream. The last chunks are transferred while the compute stream continues, until wait() makes it wait for
  // them.
  void start_reduce_scatter(const Tensor& share, const Tensor& all, const char* what, const Work& work = {});
  void wait();
  // Calls start_reduce_scatter() and then wait().
  void reduce_scatter(const Tensor& share, const Tensor& all, const char* what, const Work& work = {});

  // Defers `work`, which queues operations on the compute stream, to the next collective that gather() or wait() starts
  // or waits for. Each collective takes one deferred function, in order. A function with `covers` false is short and
  // runs together with the one before it.
  void defer(std::function<void()> work, bool covers = true);
  // Runs all deferred functions that are left.
  void run_deferred();

  // Gathers the shards [k] of all ranks in rank order into out [size * k] in one piece, on the compute stream.
  void gather_whole(const Tensor& out, const Tensor& mine, const char* what);
  // Replace each element with its maximum, or its sum, over ranks, on the compute stream.
  void all_reduce_max(const Tensor& tensor, const char* what);
  void all_reduce_sum(const Tensor& tensor, const char* what);

 private:
  struct Rows {
    int64_t begin, end;
  };
  Rows all_rows(int64_t chunk) const;    // Returns a chunk's rows among all tokens.
  Rows share_rows(int64_t chunk) const;  // Returns a chunk's rows in this rank's share.
  void check(const Tensor& all, const Tensor& share) const;
  void cover();
  void run_next();

  Communicator* ranks_;
  int64_t tokens_;
  int64_t chunks_;
  int overlap_multiprocessors_;
  Stream* compute_;
  Stream transfers_;
  // Event that is recorded on the compute stream when its rows are ready.
  Event ready_;
  // Event that is recorded on the transfer stream just before a collective.
  Event starting_;
  // Events that are recorded on the transfer stream after each chunk.
  std::vector<Event> arrived_;
  struct Deferred {
    std::function<void()> work;
    bool covers;
  };
  std::deque<Deferred> deferred_;
};

}  // namespace octavo

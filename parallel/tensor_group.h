// TensorGroup: the ranks that divide each layer of a model, as one of them sees it, and how they share its tokens
// (sequence parallelism, Korthikanti et al., arXiv 2205.05198): products read and write all `tokens` of a micro-batch,
// everything between them a rank's share, 1/size of the tokens. So the tokens are gathered before a product whose
// outputs are divided, and partial sums are reduced and scattered after one whose inputs are.
//
// Both overlap the products by splitting them. The tokens are taken in `chunks` stretches, each divided among the ranks
// in rank order, so that one stretch travels while a product works on another:
//
//   token i of chunk c of a rank's share  =  token (c * size + rank) * n + i,   n = tokens / (chunks * size)
//
// What the products of a pass can wait with (weight gradients), they defer: it is queued behind the next collective
// that the compute stream would only wait for.
//
// Collectives run on a stream of their own beside the compute stream that is given; events order the two. All methods
// are collectives of the group in the sense of Communicator. In a group of one nothing moves, and callers do not come
// here.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "core/stream.h"
#include "parallel/communicator.h"

namespace octavo {

struct TensorGroupOptions {
  Communicator* ranks = nullptr;  // borrowed; null: a group of one
  int64_t chunks = 1;  // stretches of the tokens; fewer where the tokens do not divide so, by 16 where they are by 16
  int cover_multiprocessors = 0;  // that products take while they cover a collective, which needs some too; 0: all
};

class TensorGroup {
 public:
  // `options.ranks` and `compute` must outlive the group.
  TensorGroup(const TensorGroupOptions& options, int64_t tokens, Stream& compute);

  int rank() const { return ranks_ != nullptr ? ranks_->rank() : 0; }
  int size() const { return ranks_ != nullptr ? ranks_->size() : 1; }
  bool alone() const { return size() == 1; }
  // On which the collectives run.
  Stream& transfers() { return transfers_; }

  // Work on rows [begin, end) of all tokens.
  using Work = std::function<void(int64_t begin, int64_t end)>;

  // all [tokens, width] = the shares [tokens / size, width] of all ranks; any dtype. `work`, where given, is queued on
  // the compute stream for one stretch after the other, each once its rows are there; without it the compute stream
  // waits for all.
  void gather(const Tensor& all, const Tensor& share, const char* what, const Work& work = {});

  // share [tokens / size, width] = this rank's rows of the sum over ranks of all [tokens, width]; float32 or bfloat16.
  // `work`, where given, is queued on the compute stream to make `all`, stretch by stretch. The last stretches travel
  // beside what is queued until wait(), which makes the compute stream wait for them.
  void start_reduce_scatter(const Tensor& share, const Tensor& all, const char* what, const Work& work = {});
  void wait();
  // Both.
  void reduce_scatter(const Tensor& share, const Tensor& all, const char* what, const Work& work = {});

  // Queues `work` on the compute stream behind the next collective that gather() or wait() starts or waits for, one
  // piece of work a collective, in order; or right behind the work before it, when it does not take long (`covers`
  // false).
  void defer(std::function<void()> work, bool covers = true);
  // Queues all that is left.
  void run_deferred();

  // The shares [k] of all ranks in rank order, undivided: out [size * k], on the compute stream.
  void gather_whole(const Tensor& out, const Tensor& mine, const char* what);
  // In place, on the compute stream: the largest of each element, or the sum.
  void all_reduce_max(const Tensor& tensor, const char* what);
  void all_reduce_sum(const Tensor& tensor, const char* what);

 private:
  struct Rows {
    int64_t begin, end;
  };
  Rows all_rows(int64_t chunk) const;    // of all tokens
  Rows share_rows(int64_t chunk) const;  // of this rank's share
  void check(const Tensor& all, const Tensor& share) const;
  void cover();
  void run_next();

  Communicator* ranks_;
  int64_t tokens_;
  int64_t chunks_;
  int cover_multiprocessors_;
  Stream* compute_;
  Stream transfers_;
  Event ready_;                 // of the compute stream
  Event starting_;              // of the transfers: the collective is next
  std::vector<Event> arrived_;  // of the transfers, by chunk
  struct Deferred {
    std::function<void()> work;
    bool covers;
  };
  std::deque<Deferred> deferred_;
};

}  // namespace octavo

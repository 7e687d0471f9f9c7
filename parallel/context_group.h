// ContextGroup is the group of ranks that share each sequence under context parallelism (core/sequence_chunks.h). Each
// rank has a part of the tokens of every sequence of a micro-batch. Attention needs the keys and values of all tokens
// of a sequence, so they are gathered in the order of the sequence, and their gradients are summed and scattered.
//
// All methods are collectives of the group in the sense of Communicator. Callers check alone() and do not call the
// collectives in a group of one rank. In a gather or sum, each of n ranks receives (n-1)/n of the tensor `whole`. Both
// run on a separate stream, so that the compute stream can continue until wait() makes it wait.
//
// The ranks that process the same samples are the context ranks together with their tensor-parallel ranks. Values of a
// whole micro-batch, such as the maximum of an activation, are computed among all of them.
#pragma once

#include "core/arena.h"
#include "core/sequence_chunks.h"
#include "core/stream.h"
#include "parallel/communicator.h"

namespace octavo {

// Scratch of the collectives on a tensor that is [tokens, width] on each rank.
struct ContextScratch {
  ContextScratch() = default;
  ContextScratch(const ContextRank& context, int64_t tokens, int64_t width, DType dtype, Arena& arena);

  Tensor mine;  // [tokens, width]
  Tensor all;   // [size * tokens, width], in rank order
};

struct ContextGroupOptions {
  // Borrowed communicator of the group. Null means a group of one rank.
  Communicator* ranks = nullptr;
  // Borrowed communicator of all ranks that process the same samples. Required if several ranks do.
  Communicator* micro_batch = nullptr;
};

class ContextGroup {
 public:
  // Requires: `compute` outlives the group.
  ContextGroup(const ContextGroupOptions& options, Stream& compute);

  ContextRank context_rank() const;
  bool alone() const { return context_rank().size == 1; }
  // Return the communicators of the options.
  // Requires: the communicator is not null.
  Communicator& ranks() const { return *options_.ranks; }
  Communicator& micro_batch() const { return *options_.micro_batch; }
  // Returns the stream on which keys, values and their gradients are transferred.
  Stream& transfers() { return transfers_; }

  // Columns [begin, begin + width) of the matrix `rows`. The scratch determines `width`.
  struct Columns {
    Tensor rows;
    int64_t begin = 0;
  };
  // Sets whole [batch * size * seq_len, width] = the columns `mine` of all ranks, one sequence after the other, with
  // the tokens of each sequence in the order of their positions. mine.rows is [batch * seq_len, ...].
  void start_gather(const Tensor& whole, const Columns& mine, int64_t batch, const ContextScratch& scratch,
                    const char* what);
  // Sets the columns `mine` = this rank's rows of the sum over ranks of `whole`; float32 or bfloat16. The terms of all
  // ranks are added in rank order in float32, so a bfloat16 sum is rounded once for any number of ranks. `whole` is
  // also used as scratch, so its values are lost.
  void start_reduce_scatter(const Columns& mine, const Tensor& whole, int64_t batch, const ContextScratch& scratch,
                            const char* what);
  // Makes the compute stream wait for the gather or sum that was started last. The next gather or sum with the same
  // scratch may start only after this call.
  void wait() { arrived_.wait(*compute_); }

 private:
  void begin_transfer();

  ContextGroupOptions options_;
  Stream* compute_;
  Stream transfers_;
  // Event that is recorded on the compute stream when the rows to send are ready.
  Event ready_;
  // Event that is recorded on the transfer stream just before a transfer.
  Event starting_;
  // Event that is recorded on the transfer stream after a gather or sum.
  Event arrived_;
};

}  // namespace octavo

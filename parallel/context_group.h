// ContextGroup: the ranks that share each sequence (core/sequence_pieces.h), as one of them sees it. Each has its
// tokens of every sequence of a micro-batch; what all of a sequence's tokens are needed for, the keys and values of
// attention, is gathered into the order of the sequence, and its gradient summed back.
//
// All methods are collectives of the group in the sense of Communicator, on the compute stream: what follows waits for
// them. In a group of one nothing moves, and callers do not come here. Bytes received per rank of n: (n-1)/n of
// `whole`.
//
// The ranks that work on the same samples are those of the group and, of each, those that divide its layers; what is
// known of a micro-batch as a whole, as the largest value of an activation, is found among all of them.
#pragma once

#include "core/arena.h"
#include "core/sequence_pieces.h"
#include "parallel/communicator.h"

namespace octavo {

// What the collectives travel through, of [tokens, width] on each rank.
struct ContextScratch {
  ContextScratch() = default;
  ContextScratch(const ContextRank& context, int64_t tokens, int64_t width, DType dtype, Arena& arena);

  Tensor mine;  // [tokens, width]
  Tensor all;   // [size * tokens, width], rank by rank
};

struct ContextGroupOptions {
  Communicator* ranks = nullptr;        // borrowed; null: a group of one
  Communicator* micro_batch = nullptr;  // borrowed: all that work on the same samples; needed where there are several
};

class ContextGroup {
 public:
  explicit ContextGroup(const ContextGroupOptions& options) : options_(options) {}

  ContextRank place() const;
  bool alone() const { return place().size == 1; }

  // Some columns of rows, those from `begin` on that the scratch is as wide as: [tokens, at least begin + width].
  struct Columns {
    Tensor rows;
    int64_t begin = 0;
  };
  // whole [batch * size * seq_len, width] = the columns of all ranks' rows, sequence by sequence, each by position. A
  // rank's rows are [batch * seq_len, ...].
  void gather(const Tensor& whole, const Columns& mine, int64_t batch, const ContextScratch& scratch, const char* what,
              Stream& stream) const;
  // The columns = this rank's rows of the sum over ranks of `whole`; float32 or bfloat16. The ranks' terms are brought
  // together and added in rank order in float32, so a bfloat16 sum is rounded once, however many ranks there are.
  // `whole` is overwritten with the terms of this rank's rows.
  void reduce_scatter(const Columns& mine, const Tensor& whole, int64_t batch, const ContextScratch& scratch,
                      const char* what, Stream& stream) const;
  // tensor = the largest of each element over the ranks of the group, or over all of the micro-batch; float32.
  void all_reduce_max(const Tensor& tensor, const char* what, Stream& stream) const;
  void all_reduce_max_of_micro_batch(const Tensor& tensor, const char* what, Stream& stream) const;

 private:
  ContextGroupOptions options_;
};

}  // namespace octavo

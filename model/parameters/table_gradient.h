// TableGradient: the gradient of an embedding table of whose rows every rank of a group holds a slice, from the
// gradients of the tokens that each rank read. A reduce-scatter would move the whole table, of which a micro-batch
// touches few rows; here move
//
//   1. the tokens' gradients [tokens, columns], cut into stretches of columns, one a rank: so a rank has its columns of
//      all ranks' tokens. It adds them to its columns of the table in float32, rank by rank and each rank's in the
//      order of EmbeddingBackward;
//   2. those sums, of which every rank gets the rows that it holds.
//
// All sizes are the same whichever rows are touched, so nothing is counted, no rank waits for another's counts, and
// steps are alike. Of n ranks each receives (n-1)/n of [tokens, columns] in the tokens' dtype and of its slice of the
// table in float32 (moved_bytes()), by two all_to_alls. Bitwise deterministic.
#pragma once

#include <cstdint>

#include "core/stream.h"
#include "parallel/fsdp.h"

namespace octavo {

struct TableSpec {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t slice_rows = 0;          // of a rank; those of all of them are the table, and padding behind it
  int64_t tokens = 0;              // of a rank and micro-batch
  DType dtype = DType::kBFloat16;  // of their gradients
  int ranks = 1;

  int64_t width() const;        // of a stretch of columns, wider than there are where the ranks do not divide them
  int64_t moved_bytes() const;  // what an all_to_all of both tensors moves
  int64_t padded_rows() const { return ranks * slice_rows; }
  // What a reduce-scatter moves.
  int64_t whole_bytes() const { return padded_rows() * columns * dtype_bytes(DType::kFloat32); }
  int64_t memory_bytes() const;  // of what lies in ReducedUnit::gradient
  // Whether to exchange tokens: that loads the links less, takes no more memory than the whole gradient (with columns
  // for whole stretches), and few enough passes over the tokens. `all_to_all_load`: MeshShape::all_to_all_load().
  bool is_better(int64_t all_to_all_load) const;
};

class TableGradient : public TokenReduction {
 public:
  // unit.gradient is borrowed: memory_bytes() or more of any dtype, undefined while planning. unit.shard is
  // [slice_rows * columns]. Where unit.keeps, step 2 is done once for all micro-batches of a step.
  TableGradient(const TableSpec& spec, const ReducedUnit& unit);

  void cut(const TokenRows& rows, Stream& stream) override;
  // [ranks * tokens * width]: the tokens' gradients, zero beyond the columns.
  const Tensor& cut_tokens() const override { return cut_; }
  void run(const MicroBatchPlace& at, Stream& stream) override;

 private:
  int64_t columns_of(int rank) const;  // that its stretch really has
  // 1: sums over the ranks, = when `first`, else added to those of the micro-batches before.
  void add_tokens(bool first, Stream& stream);
  // 2: the shard = the sums of this rank's rows, or += them. The sums are gone afterwards.
  void finish(bool adds, Stream& stream);
  void join(const Tensor& slice, Stream& stream) const;

  TableSpec spec_;
  ReducedUnit unit_;
  int64_t first_row_ = 0;
  Tensor cut_;            // [ranks * tokens * width] of spec.dtype
  Tensor positions_;      // [2 * tokens] int32: ids and order
  Tensor tokens_;         // as cut_: this rank's columns, a stretch of tokens a rank
  Tensor all_positions_;  // [ranks * 2 * tokens]
  Tensor sums_;           // [padded_rows * width] float32
  Tensor parts_;  // [padded_rows * width] float32: a stretch of columns a rank, of this rank's rows; over the tokens
};

// The table as a unit of Fsdp.
TokenUnit token_unit(const TableSpec& spec);

}  // namespace octavo

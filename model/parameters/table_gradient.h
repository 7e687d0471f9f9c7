// TableGradient computes the gradient of an embedding table, of whose rows each rank of a group holds a slice, from the
// gradients of the tokens that each rank read. A reduce-scatter would transfer the whole table, although a micro-batch
// reads few rows of it. TableGradient transfers instead:
//
//     1. the gradients of the tokens [tokens, columns], divided into one range of columns per rank. Each rank thus
//        receives its columns for the tokens of all ranks. It adds them to its columns of the table in float32,
//        rank by rank, and the tokens of a rank in the order of EmbeddingBackward;
//     2. these sums, of which every rank receives the rows that it holds.
//
// All sizes are independent of which rows are read, so ranks exchange no counts, and all steps take equal time. Each of
// n ranks receives (n-1)/n of [tokens, columns] in the tokens' dtype and (n-1)/n of its slice of the table in float32
// (moved_bytes()), in two all_to_alls. Bitwise deterministic.
#pragma once

#include <cstdint>

#include "core/stream.h"
#include "parallel/fsdp.h"

namespace octavo {

struct TableSpec {
  int64_t rows = 0;
  int64_t columns = 0;
  // Rows per rank. The slices of all ranks are the table, followed by padding.
  int64_t slice_rows = 0;
  int64_t tokens = 0;              // Number of tokens per rank and micro-batch.
  DType dtype = DType::kBFloat16;  // Dtype of the tokens' gradients.
  int ranks = 1;

  // Returns the number of columns per rank, rounded up.
  int64_t width() const;
  int64_t moved_bytes() const;  // Returns the bytes of both exchanged tensors.
  int64_t padded_rows() const { return ranks * slice_rows; }
  // Returns the bytes that a reduce-scatter would transfer.
  int64_t whole_bytes() const { return padded_rows() * columns * dtype_bytes(DType::kFloat32); }
  int64_t memory_bytes() const;  // Returns the size of the buffer ReducedUnit::gradient.
  // Returns whether exchanging tokens is better than a reduce-scatter. It must load the links less, take no more memory
  // than the whole gradient (with padded columns), and iterate over the tokens of at most kMostRanks ranks.
  // `all_to_all_load` is MeshShape::all_to_all_load().
  bool is_better(int64_t all_to_all_load) const;
};

class TableGradient : public TokenReduction {
 public:
  // Borrows unit.gradient. If unit.keeps, step 2 runs once for all micro-batches of a step.
  // Requires: unit.gradient has memory_bytes() of any dtype (undefined while planning); unit.shard [slice_rows *
  // columns].
  TableGradient(const TableSpec& spec, const ReducedUnit& unit);

  void slice_columns(const TokenRows& rows, Stream& stream) override;
  // Returns [ranks * tokens * width]: the tokens' gradients, with zeros after the last column.
  const Tensor& column_slices() const override { return column_slices_; }
  void run(const MicroBatchPosition& position, Stream& stream) override;

 private:
  int64_t columns_of(int rank) const;  // Returns the number of columns of a rank, without padding.
  // Step 1. Sums over the ranks. If `first` is false, the sums are added to those of earlier micro-batches.
  void add_tokens(bool first, Stream& stream);
  // Step 2. Sets the shard to the sums of this rank's rows, or adds them to it. The sums are invalid afterwards.
  void finish(bool adds, Stream& stream);
  void join(const Tensor& slice, Stream& stream) const;

  TableSpec spec_;
  ReducedUnit unit_;
  int64_t first_row_ = 0;
  Tensor column_slices_;  // [ranks * tokens * width] of spec.dtype.
  Tensor positions_;      // [2 * tokens] int32: [ids | order] of EmbeddingBackward.
  // Same shape as column_slices_: this rank's columns, for the tokens of one rank after the other.
  Tensor tokens_;
  Tensor all_positions_;  // [ranks * 2 * tokens] int32.
  Tensor sums_;           // [padded_rows * width] float32.
  // [padded_rows * width] float32: this rank's rows, one range of columns per rank. Shares memory with column_slices_
  // and tokens_.
  Tensor parts_;
};

// Returns the options of the table as a unit of Fsdp.
TokenUnit token_unit(const TableSpec& spec);

}  // namespace octavo

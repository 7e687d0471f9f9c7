// The reduction of a unit's full gradient to this rank's slice of its sum over the shard group (parallel/fsdp.h). Fsdp
// chooses one policy per unit at construction:
//
//     full gradient is kept           ops add to it; one reduce-scatter with the last micro-batch of a step
//     full gradient rotates           one reduce-scatter per micro-batch, whose result is added to the slice
//     rotates in bfloat16, and an     an all-to-all instead of the reduce-scatter collects the terms of all ranks,
//     all-to-all is cheap             which are summed in float32 in rank order, so that no partial sum is rounded
//     FsdpUnit::in_rank_order         an all-to-all instead of the reduce-scatter, as above
//     table read by tokens            the gradients of the tokens are sent instead of the table's (TokenReduction)
//
// Everything is queued on the given stream. Reductions are collectives of the group: every rank makes the same calls in
// the same order.
#pragma once

#include <cstdint>

#include "core/stream.h"
#include "parallel/communicator.h"

namespace octavo {

// Position of a micro-batch in its step.
struct MicroBatchPosition {
  bool first = true;
  bool last = true;
};

// Gradients of the tokens that read a table.
struct TokenRows {
  Tensor gradients;  // [tokens, columns]
  // [tokens] int32. Token t read row ids[t] - first_row, if that row is in the table.
  Tensor ids;
  // [tokens] int32: EmbeddingBackward::order (kernels/layers/embedding.h).
  Tensor order;
  int64_t first_row = 0;
};

// Reduction of a table's gradient that is given as the gradients of the tokens that read the table.
class TokenReduction {
 public:
  virtual ~TokenReduction() = default;
  // Reduces the gradient of the micro-batch. After the last micro-batch the slice holds the sum of the step.
  virtual void run(const MicroBatchPosition& position, Stream& stream) = 0;
  // Copies from `rows` the data that run() sends.
  virtual void slice_columns(const TokenRows& rows, Stream& stream) = 0;
  // Returns the data that slice_columns() copied, which is this rank's whole contribution to the gradient.
  virtual const Tensor& column_slices() const = 0;
};

// Tensors and options of a reduction.
struct ReducedUnit {
  // [ranks * elements], or the buffer of a TokenReduction.
  Tensor gradient;
  Tensor shard = {};   // [elements] float32: this rank's slice.
  bool keeps = false;  // Whether the full gradient is kept between micro-batches.
  // Whether an all-to-all collects the terms of all ranks, which are then summed in float32 in rank order.
  bool as_terms = false;
  Communicator* ranks = nullptr;
  const char* name = "";
};

// Returns the size of the buffer `arrived` of reduce_gradient().
int64_t arrived_bytes(const ReducedUnit& unit);
// Reduces the gradient of a micro-batch, or of all micro-batches of the step if the gradient is kept, with = for the
// `first` micro-batch and += for later ones. `arrived` is scratch, which may be shared by calls that follow one another
// on one stream.
void reduce_gradient(const ReducedUnit& unit, const Tensor& arrived, bool first, Stream& stream);

}  // namespace octavo

// GradientReduction: how the full gradient of a unit of Fsdp (parallel/fsdp.h) becomes this rank's slice of its sum
// over the shard group. One policy per unit, chosen when Fsdp is made:
//
//   the full gradient stays         ops add to it, and it is reduced and scattered with the last micro-batch of a step
//   it is in a rotating slot        every micro-batch's gradient is reduced and scattered, and added to the slice
//   it rotates, in bfloat16,        an all_to_all brings the ranks' terms together, and they are summed in float32 in
//   rank and all_to_all is cheap         order, so that no sum is rounded on the way it is that of tokens the gradients
//   of the tokens move in place of the table's (TokenReduction)
//
// Everything is queued on the stream that is given. Collectives of the group: the same calls in the same order on every
// rank.
#pragma once

#include <cstdint>
#include <memory>

#include "core/stream.h"
#include "parallel/communicator.h"

namespace octavo {

// Place of a micro-batch in its step.
struct MicroBatchPlace {
  bool first = true;
  bool last = true;
};

class GradientReduction {
 public:
  virtual ~GradientReduction() = default;
  // Returns whether run() has something to do after this micro-batch.
  virtual bool is_due(const MicroBatchPlace& /*at*/) const { return true; }
  // Takes the full gradient of the micro-batch. The slice has the sum of the step after the last one.
  virtual void run(const MicroBatchPlace& at, Stream& stream) = 0;
};

struct TokenRows {
  Tensor gradients;  // [tokens, columns]
  Tensor ids;        // [tokens] int32; token t read row ids[t] - first_row, if the table has it
  Tensor order;      // [tokens] int32, as in EmbeddingBackward
  int64_t first_row = 0;
};

// The reduction of a table's gradient that is given as the gradients of the tokens that read the table.
class TokenReduction : public GradientReduction {
 public:
  // Copies what run() sends.
  virtual void cut(const TokenRows& rows, Stream& stream) = 0;
  // The copy, which is all that this rank adds to the gradient.
  virtual const Tensor& cut_tokens() const = 0;
};

// What a reduction works on.
struct ReducedUnit {
  Tensor gradient;     // [ranks * elements], or memory for what a TokenReduction needs
  Tensor shard = {};   // [elements] float32: the slice
  bool keeps = false;  // the full gradient stays from micro-batch to micro-batch
  bool as_terms = false;
  Communicator* ranks = nullptr;
  const char* name = "";
};

// Bytes of `arrived` below.
int64_t arrived_bytes(const ReducedUnit& unit);
// The reduction of a gradient that ops write. `arrived` is borrowed, and may serve several reductions whose runs follow
// each other on a stream.
std::unique_ptr<GradientReduction> make_reduction(const ReducedUnit& unit, const Tensor& arrived);

}  // namespace octavo

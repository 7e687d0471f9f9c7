// The three matmuls of lm_head, over one chunk of the tokens of a micro-batch at a time:
//
//   logits = x W^T        x [tokens, hidden] is the output of the final norm, W [vocab, hidden] the weight
//   d_W   += d_logits^T x
//   d_x    = d_logits W
//
// precision.lm_head decides which of them multiply in FP8, with one scale per tensor (fp8_tensorwise): `fp8` all three,
// `fp8_backward` the last two. The others multiply in the compute dtype, and with `fp8_backward` the logits and the
// loss have the bits of `bfloat16`.
//
// x and W are cast to e4m3. The scale of x comes from the amax over all tokens of the micro-batch on all ranks that
// work on it, the scale of W from the amax over the whole weight. So neither scale depends on the chunks or on the
// mesh.
//
// The gradients of the logits are cast to the format of output gradients (PrecisionConfig::gradient_format). Their
// scale needs no amax, because the loss bounds them (cross_entropy_gradient_bound). The bound becomes the format's
// largest number. Probabilities in the tail of the softmax are lost: gradients below half of the format's smallest
// number are rounded to zero.
//
//   e5m2  below 2^-17 / 57344 = 1.3e-10 of the bound   full precision above 1.1e-9 of the bound
//   e4m3  below 2^-10 / 448 = 2.2e-6 of the bound      full precision above 3.5e-5 of the bound
//
// The mean probability of a token is 7.8e-6 with a vocabulary of 128,256.
//
// Only a z-loss can make a gradient exceed the bound. Such gradients are clamped to it.
//
// The arena provides memory at construction. Each pass and each chunk overwrites it. Work is queued on the stream and
// is deterministic.
#pragma once

#include "core/arena.h"
#include "core/stream.h"
#include "model/architecture/precision.h"
#include "parallel/context_group.h"
#include "parallel/tensor_group.h"

namespace octavo {

class LmHead {
 public:
  // Sizes of the matrices. FP8 requires multiples of 16.
  struct Shape {
    int64_t chunk;  // Maximum number of tokens per chunk.
    int64_t hidden;
    int64_t vocab;  // Entries of the vocabulary on this rank.
  };
  LmHead(const PrecisionConfig& precision, const Shape& shape, bool training, Arena& arena);

  // Begins the pass of a micro-batch: measures x [all tokens, hidden] and `weight`, and casts `weight`,
  // if the pass multiplies in FP8. `backward` says whether the pass computes gradients. Collective over `tensor` and
  // `sequences`. `weight` is read until the pass ends.
  void begin(const Tensor& weight, const Tensor& x, bool backward, TensorGroup& tensor, const ContextGroup& sequences,
             Stream& stream);

  // logits [tokens, vocab] = x W^T, where x [tokens, hidden] holds the next chunk.
  void forward(const Tensor& logits, const Tensor& x, Stream& stream);

  // Returns where the kernel that computes the gradients of the chunk's logits may write their FP8 cast in place of the
  // gradients. `bound` is an upper bound of their absolute values. Undefined if the gradients are not multiplied in
  // FP8.
  Fp8Cast gradient_cast(float bound) const;

  struct Backward {
    Tensor d_weight;  // [vocab, hidden] float32, = or, with `accumulate`, +=
    Tensor x;         // [tokens, hidden], the chunk of forward; overwritten with its gradient
    Tensor d_logits;  // [tokens, vocab] compute dtype; not read if `cast` is defined
    // Result of gradient_cast() if the kernel before wrote it, otherwise undefined.
    Fp8Cast cast;
    float bound = 0;  // Upper bound of the magnitudes in d_logits.
    bool accumulate = false;
  };
  void backward(const Backward& args, Stream& stream);

 private:
  bool makes_fp8_logits() const { return traits(precision_.lm_head).logits; }
  bool makes_fp8_gradients() const { return backward_ && traits(precision_.lm_head).gradients; }
  bool uses_fp8() const { return makes_fp8_logits() || makes_fp8_gradients(); }
  bool fast(bool forward) const;
  void backward_fp8(const Backward& args, Stream& stream);

  PrecisionConfig precision_;
  Tensor input_amax_, weight_amax_;  // [1] float32
  Fp8Operand weight_rows_, weight_columns_;
  // Memory for a chunk. A smaller chunk uses the first part.
  Fp8Operand input_rows_, input_columns_;
  Fp8Operand gradient_rows_, gradient_columns_;
  Tensor weight_;          // Weight of lm_head in the current pass.
  bool backward_ = false;  // Whether the current pass computes gradients.
  int64_t tokens_ = 0;     // Number of tokens of the current chunk.
};

}  // namespace octavo

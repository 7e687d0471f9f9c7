// lm_head's products in FP8 (precision.lm_head), with one scale a tensor:
//
//   fp8           logits = rows(x) rows(W)^T
//   fp8_backward  d_W   += columns(d_logits) columns(x)^T
//   and fp8       d_x    = rows(d_logits) columns(W)^T
//
// x [tokens, hidden], the final norm, and W [vocab, hidden] are e4m3 and scaled by their own amaxes: that of x is over
// all tokens of the micro-batch and the ranks that work on it, that of W over the whole weight, both as the compute
// dtype has them. So scales, and with them the casts of a chunk of tokens, do not depend on chunks or on the mesh.
//
// The logits' gradients have the format of output gradients (PrecisionConfig::gradient_format) and need no amax: the
// loss bounds them (cross_entropy_gradient_bound), and the bound is near what they reach while targets are improbable.
// It is made fp8_max, so that the most of the softmax stays: what is lost are its tails, gradients under half of the
// smallest number of the format,
//
//   e5m2  2^-17 / 57344 = 1.3e-10 of the bound   they keep 2 bits behind the leading one above 1.1e-9
//   e4m3  2^-10 / 448 = 2.2e-6 of the bound      3 bits above 3.5e-5: with 128,256 entries the mean is 7.8e-6
//
// Gradients beyond the bound, which only a z-loss can make, are clamped to it.
//
// Without `fp8` the logits, and so the loss, are those of the compute dtype, bit by bit. Memory comes from the arena at
// construction and is overwritten by each pass and chunk. Queued; deterministic.
#pragma once

#include "core/arena.h"
#include "core/stream.h"
#include "model/architecture/precision.h"
#include "parallel/context_group.h"
#include "parallel/tensor_group.h"

namespace octavo {

class Fp8Head {
 public:
  struct Shape {
    int64_t chunk;   // tokens at a time, at most; multiples of 16
    int64_t hidden;  // a multiple of 16
    int64_t vocab;   // of this rank; a multiple of 16
  };
  // Whether there are such products in training, or in inference.
  static bool is_used(LmHeadPrecision precision, bool training) {
    return traits(precision).logits || (training && traits(precision).gradients);
  }

  Fp8Head(const PrecisionConfig& precision, const Shape& shape, bool training, Arena& arena);

  bool makes_logits() const { return traits(precision_.lm_head).logits; }

  // Before the first chunk of a pass: finds the amaxes of x [all tokens, hidden] and W and casts W. `backward`: the
  // pass has gradients. A collective of `tensor` and `sequences`.
  void begin(const Tensor& weight, const Tensor& x, bool backward, TensorGroup& tensor, const ContextGroup& sequences,
             Stream& stream);
  // x [tokens, hidden] of the chunk that the calls below are about; it may be overwritten afterwards.
  void cast_input(const Tensor& x, bool backward, Stream& stream);
  // logits [tokens, vocab] =, compute dtype.
  void forward(const Tensor& logits, Stream& stream);
  // Of the gradients of the chunk's logits, for the kernel that makes them, which do not exceed `bound`
  // (cross_entropy_gradient_bound).
  Fp8Cast gradient_cast(float bound) const;

  struct Backward {
    Tensor d_weight;  // [vocab, hidden] float32, = or (accumulate) +=
    Tensor d_x;       // [tokens, hidden] compute dtype, =
    Tensor d_logits;  // [tokens, vocab] compute dtype; undefined: gradient_cast() was made of them
    float bound = 0;  // of d_logits
    bool accumulate = false;
  };
  void backward(const Backward& args, Stream& stream);

 private:
  bool fast(bool forward) const;

  PrecisionConfig precision_;
  Tensor input_amax_, weight_amax_;  // [1] float32
  Fp8Operand weight_rows_, weight_columns_;
  // With room for a chunk; rows and columns of a smaller one are its beginning.
  Fp8Operand input_rows_, input_columns_;
  Fp8Operand gradient_rows_, gradient_columns_;
  int64_t tokens_ = 0;  // of the chunk
};

}  // namespace octavo

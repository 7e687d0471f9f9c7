#include "model/lm_head.h"

#include "kernels/fp8/fp8_shard.h"
#include "kernels/matmul/matmul.h"
#include "model/linear/linear_layer.h"

namespace octavo {

namespace {

// The first part of an operand's memory. An operand with one scale can be cut anywhere.
Fp8Operand resized(const Fp8Operand& operand, int64_t rows, int64_t k) {
  return {.data = Tensor(operand.data.raw(), operand.data.dtype(), {rows, k}),
          .scale_inv = operand.scale_inv,
          .scaling = operand.scaling};
}

}  // namespace

LmHead::LmHead(const PrecisionConfig& precision, const Shape& s, bool training, Arena& arena) : precision_(precision) {
  const bool gradients = training && traits(precision.lm_head).gradients;
  if (!makes_fp8_logits() && !gradients) return;
  const auto allocate = [&](const char* name, DType format, int64_t rows, int64_t k) {
    return allocate_operand(name, format, Scaling::kTensor, rows, k, arena, Lifetime::kBlock);
  };
  constexpr DType kFormat = DType::kFloat8E4M3;
  input_amax_ = arena.allocate("fp8 head norm amax", DType::kFloat32, {1}, Lifetime::kBlock);
  weight_amax_ = arena.allocate("fp8 lm_head amax", DType::kFloat32, {1}, Lifetime::kBlock);
  if (makes_fp8_logits()) {
    weight_rows_ = allocate("fp8 lm_head", kFormat, s.vocab, s.hidden);
    input_rows_ = allocate("fp8 head norm of a chunk", kFormat, s.chunk, s.hidden);
  }
  if (!gradients) return;
  weight_columns_ = allocate("fp8 lm_head transposed", kFormat, s.hidden, s.vocab);
  input_columns_ = allocate("fp8 head norm of a chunk transposed", kFormat, s.hidden, s.chunk);
  gradient_rows_ = allocate("fp8 logits of a chunk", precision.gradient_format, s.chunk, s.vocab);
  gradient_columns_ = allocate("fp8 logits of a chunk transposed", precision.gradient_format, s.vocab, s.chunk);
}

bool LmHead::fast(bool forward) const { return accumulates_fast(kLmHeadRecipe, precision_.fast_accumulation, forward); }

void LmHead::begin(const Tensor& weight, const Tensor& x, bool backward, TensorGroup& tensor,
                   const ContextGroup& sequences, Stream& stream) {
  weight_ = weight;
  backward_ = backward;
  if (!uses_fp8()) return;
  stream.zero(input_amax_);
  stream.zero(weight_amax_);
  amax({.out = input_amax_, .x = x.view({x.numel()})}, stream);
  amax({.out = weight_amax_, .x = weight.view({weight.numel()})}, stream);
  if (!tensor.alone()) tensor.all_reduce_max(weight_amax_, "lm_head's amax");
  if (!sequences.alone()) sequences.all_reduce_max(input_amax_, "the final norm's amax", stream);
  quantize({.cast = {.rows = weight_rows_,
                     .columns = makes_fp8_gradients() ? weight_columns_ : Fp8Operand{},
                     .amax = weight_amax_},
            .x = weight},
           stream);
}

void LmHead::forward(const Tensor& logits, const Tensor& x, Stream& stream) {
  tokens_ = x.dim(0);
  const int64_t hidden = x.dim(1);
  const Fp8Operand rows = makes_fp8_logits() ? resized(input_rows_, tokens_, hidden) : Fp8Operand{};
  if (uses_fp8()) {
    const Fp8Operand columns = makes_fp8_gradients() ? resized(input_columns_, hidden, tokens_) : Fp8Operand{};
    quantize({.cast = {.rows = rows, .columns = columns, .amax = input_amax_}, .x = x}, stream);
  }
  if (!makes_fp8_logits()) {
    return matmul({.d = logits, .a = x, .b = weight_, .transpose_b = true, .name = "lm_head"}, stream);
  }
  fp8_matmul({.d = logits, .a = rows, .b = weight_rows_, .fast_accumulation = fast(true), .name = "lm_head"}, stream);
}

Fp8Cast LmHead::gradient_cast(float bound) const {
  if (!makes_fp8_gradients()) return {};
  return {.rows = resized(gradient_rows_, tokens_, gradient_rows_.data.dim(1)), .bound = bound};
}

// The gradient of x replaces x, so the gradient of the weight, which reads x, comes first.
void LmHead::backward(const Backward& args, Stream& stream) {
  if (makes_fp8_gradients()) return backward_fp8(args, stream);
  matmul({.d = args.d_weight,
          .a = args.d_logits,
          .b = args.x,
          .transpose_a = true,
          .accumulate = args.accumulate,
          .name = "lm_head_d_w"},
         stream);
  matmul({.d = args.x, .a = args.d_logits, .b = weight_, .name = "lm_head_d_x"}, stream);
}

void LmHead::backward_fp8(const Backward& args, Stream& stream) {
  const int64_t vocab = gradient_rows_.data.dim(1);
  const Fp8Operand rows = resized(gradient_rows_, tokens_, vocab);
  Fp8Operand columns = resized(gradient_columns_, vocab, tokens_);
  if (args.cast.defined()) {
    fp8_transpose({.out = columns.data, .x = rows.data}, stream);
    columns.scale_inv = rows.scale_inv;
  } else {
    quantize({.cast = {.rows = rows, .columns = columns, .bound = args.bound}, .x = args.d_logits}, stream);
  }
  fp8_matmul({.d = args.d_weight,
              .a = columns,
              .b = resized(input_columns_, input_columns_.data.dim(0), tokens_),
              .accumulate = args.accumulate,
              .fast_accumulation = fast(false),
              .name = "lm_head_d_w"},
             stream);
  // Fast accumulation would lose the small terms of this sum over the vocabulary (precision.h).
  fp8_matmul({.d = args.x, .a = rows, .b = weight_columns_, .name = "lm_head_d_x"}, stream);
}

}  // namespace octavo

#include "model/linear_layer.h"

#include <algorithm>

#include "kernels/core/error.h"
#include "model/linear.h"

namespace octavo {

Scaling activation_scaling(LinearPrecision recipe) {
  switch (recipe) {
    case LinearPrecision::kFp8Rowwise:
      return Scaling::kRow;
    case LinearPrecision::kFp8Blockwise:
      return Scaling::kBlock1x128;
    default:
      return Scaling::kTensor;
  }
}

Scaling weight_scaling(LinearPrecision recipe) {
  return recipe == LinearPrecision::kFp8Blockwise ? Scaling::kBlock128x128 : activation_scaling(recipe);
}

Fp8Operand allocate_operand(const std::string& name, DType format, Scaling scaling, int64_t rows, int64_t k,
                            Arena& arena) {
  return {.data = arena.allocate(name, format, {rows, k}),
          .scale_inv = arena.allocate(name + " scales", DType::kFloat32, {fp8_scale_count(scaling, rows, k)}),
          .scaling = scaling};
}

namespace {

// An operand over the beginning of shared memory.
Fp8Operand view_operand(const Tensor& bytes, const Tensor& scales, DType format, Scaling scaling, int64_t rows,
                        int64_t k) {
  return {.data = Tensor(bytes.raw(), format, {rows, k}),
          .scale_inv = scales.rows(0, fp8_scale_count(scaling, rows, k)),
          .scaling = scaling};
}

}  // namespace

LinearScratch::LinearScratch(std::span<const LinearShape> shapes, LinearPrecision recipe, Arena& arena) {
  const Scaling scaling = activation_scaling(recipe);
  int64_t elements = 0;
  int64_t row_count = 0;
  int64_t column_count = 0;
  for (const LinearShape& s : shapes) {
    for (const int64_t width : {s.in, s.out}) {
      elements = std::max(elements, s.tokens * width);
      row_count = std::max(row_count, fp8_scale_count(scaling, s.tokens, width));
      column_count = std::max(column_count, fp8_scale_count(scaling, width, s.tokens));
    }
  }
  row_bytes = arena.allocate("fp8 rows", DType::kUInt8, {elements});
  column_bytes = arena.allocate("fp8 columns", DType::kUInt8, {elements});
  row_scales = arena.allocate("fp8 row scales", DType::kFloat32, {row_count});
  column_scales = arena.allocate("fp8 column scales", DType::kFloat32, {column_count});
}

LinearLayer::LinearLayer(const LinearOptions& options, Arena& arena) : options_(options) {
  if (!is_fp8(options.recipe) || !options.gradient.defined()) return;
  input_columns_ = allocate_operand("activations fp8", DType::kFloat8E4M3, activation_scaling(options.recipe),
                                    options.shape.in, options.shape.tokens, arena);
}

Tensor LinearLayer::amax_slot(AmaxTable::Kind kind) const {
  return is_per_tensor(options_.recipe) ? options_.amaxes->current(options_.index, kind) : Tensor();
}

Tensor LinearLayer::scale_amax(AmaxTable::Kind kind) const {
  return is_per_tensor(options_.recipe) ? options_.amaxes->scaling(options_.index, kind) : Tensor();
}

// Whether the scales of an operand are known when its kernel has the values.
// Statistics are taken of casts whose tensor is there as well.
bool LinearLayer::casts_early() const {
  if (options_.stats != nullptr && options_.stats->measuring()) return false;
  if (options_.recipe == LinearPrecision::kFp8Delayed) return options_.amaxes->uses_history();
  return options_.recipe == LinearPrecision::kFp8Blockwise;
}

Fp8Cast LinearLayer::input_cast() const { return casts_early() ? input_operands() : Fp8Cast{}; }

Fp8Cast LinearLayer::gradient_cast() const { return casts_early() ? gradient_operands() : Fp8Cast{}; }

Fp8Cast LinearLayer::input_operands() const {
  const LinearOptions& o = options_;
  return {.rows = view_operand(o.scratch->row_bytes, o.scratch->row_scales, DType::kFloat8E4M3,
                               activation_scaling(o.recipe), o.shape.tokens, o.shape.in),
          .columns = input_columns_,
          .amax = scale_amax(AmaxTable::kInput)};
}

Fp8Cast LinearLayer::gradient_operands() const {
  const LinearOptions& o = options_;
  const Scaling scaling = activation_scaling(o.recipe);
  const DType format = o.precision.gradient_format;
  return {
      .rows = view_operand(o.scratch->row_bytes, o.scratch->row_scales, format, scaling, o.shape.tokens, o.shape.out),
      .columns =
          view_operand(o.scratch->column_bytes, o.scratch->column_scales, format, scaling, o.shape.out, o.shape.tokens),
      .amax = scale_amax(AmaxTable::kOutputGradient)};
}

bool LinearLayer::fast(bool forward) const {
  if (options_.recipe == LinearPrecision::kFp8Blockwise) return false;
  switch (options_.precision.fast_accumulation) {
    case FastAccumulation::kAll:
      return true;
    case FastAccumulation::kNone:
      return false;
    case FastAccumulation::kForward:
      return forward;
  }
  return false;
}

// A per-tensor scale needs the amax first, unless it comes from the history; then the cast measures on the way.
void LinearLayer::cast(const Fp8Operand& rows, const Fp8Operand& columns, const Tensor& x, AmaxTable::Kind kind,
                       bool measured, Stream& stream) {
  if (!is_per_tensor(options_.recipe)) {
    quantize({.rows = rows, .columns = columns, .x = x, .amax = {}, .amax_out = {}}, stream);
    return add_stats(rows, x, kind, stream);
  }
  const Tensor current = amax_slot(kind);
  const bool measure_now = !measured && options_.amaxes->uses_history();
  if (!measured && !measure_now) amax({.out = current, .x = x.view({x.numel()})}, stream);
  quantize({.rows = rows,
            .columns = columns,
            .x = x,
            .amax = scale_amax(kind),
            .amax_out = measure_now ? current : Tensor()},
           stream);
  add_stats(rows, x, kind, stream);
}

// While the amax that the cast scaled by is still there.
void LinearLayer::add_stats(const Fp8Operand& rows, const Tensor& x, AmaxTable::Kind kind, Stream& stream) {
  if (options_.stats == nullptr) return;
  options_.stats->add({.linear = options_.index, .kind = kind, .rows = rows, .x = x, .amax = scale_amax(kind)}, stream);
}

void LinearLayer::forward(const Tensor& y, const Tensor& x, Made made, Stream& stream) {
  const LinearOptions& o = options_;
  if (!is_fp8(o.recipe)) {
    input_ = x;
    return linear_forward({.y = y, .x = x, .w = o.weight.value, .name = o.names.forward}, stream);
  }
  const Fp8Cast operands = input_operands();
  if (made != Made::kCast || !casts_early()) {
    cast(operands.rows, operands.columns, x, AmaxTable::kInput, made != Made::kPlain, stream);
  }
  fp8_matmul({.d = y, .a = operands.rows, .b = o.weight.rows, .fast_accumulation = fast(true), .name = o.names.forward},
             stream);
}

void LinearLayer::backward(const Tensor& d_x, const Tensor& d_y, Made made, bool accumulate, Stream& stream) {
  const LinearOptions& o = options_;
  if (!is_fp8(o.recipe)) {
    return linear_backward({.d_x = d_x,
                            .d_w = o.gradient,
                            .d_y = d_y,
                            .x = input_,
                            .w = o.weight.value,
                            .accumulate = accumulate,
                            .input_name = o.names.d_x,
                            .weight_name = o.names.d_w},
                           stream);
  }
  const Fp8Cast operands = gradient_operands();
  if (made != Made::kCast || !casts_early()) {
    cast(operands.rows, operands.columns, d_y, AmaxTable::kOutputGradient, made != Made::kPlain, stream);
  }
  fp8_matmul({.d = o.gradient,
              .a = operands.columns,
              .b = input_columns_,
              .accumulate = accumulate,
              .fast_accumulation = fast(false),
              .name = o.names.d_w},
             stream);
  fp8_matmul(
      {.d = d_x, .a = operands.rows, .b = o.weight.columns, .fast_accumulation = fast(false), .name = o.names.d_x},
      stream);
}

int64_t LinearLayer::workspace_bytes(LinearPrecision recipe, const LinearShape& s, DType compute,
                                     const Stream& stream) {
  if (is_fp8(recipe)) {
    return std::max({fp8_matmul_workspace_bytes(s.tokens, s.out, s.in, stream),
                     fp8_matmul_workspace_bytes(s.tokens, s.in, s.out, stream),
                     fp8_matmul_workspace_bytes(s.out, s.in, s.tokens, stream)});
  }
  return linear_workspace_bytes(s.tokens, s.in, s.out, compute, stream);
}

}  // namespace octavo

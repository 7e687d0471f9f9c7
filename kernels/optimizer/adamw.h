// AdamW (Loshchilov and Hutter, arXiv 1711.05101) with global-norm clipping on the device:
//
//   c = min(1, grad_clip / (sqrt(grad_sum_of_squares) + 1e-6)), as torch.nn.utils.clip_grad_norm_; 1 if grad_clip <= 0
//   g = c * grad
//   m = beta1 m + (1 - beta1) g
//   v = beta2 v + (1 - beta2) g^2
//   w = w - lr * (m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + eps) + weight_decay * w)
//
// The optional outputs are w in the compute dtype for the next forward, and the amax of w (kernels/fp8/fp8.h), where
// NaN and infinity count as the largest values. If `skip` is not 0, m, v and w keep their bits and only the amax is
// computed. One fused elementwise kernel updates flat buffers that may start at any element. The kernel is fastest if
// all buffers have the same offset, in elements, from a multiple of 8 elements. Queued on `stream`; deterministic.
// kernels/optimizer/adamw_float8.h describes moments in three bytes, with which the results have equal bits on all
// devices.
#pragma once

#include <cmath>

#include "core/stream.h"
#include "kernels/math/matrix_range.h"

namespace octavo {

struct AdamwOptions {
  float lr = 0;
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float eps = 1e-8f;
  float weight_decay = 0;
  float grad_clip = 0;
  int64_t step = 1;  // counted from 1
};

// The factors 1 / (1 - beta^step) that make the moments unbiased.
struct AdamwScales {
  float m;
  float v;

  explicit AdamwScales(const AdamwOptions& o) : m(of(o.beta1, o.step)), v(of(o.beta2, o.step)) {}
  static float of(float beta, int64_t step) {
    return static_cast<float>(1.0 / (1.0 - std::pow(static_cast<double>(beta), static_cast<double>(step))));
  }
};

struct Adamw {
  Tensor master;               // w, in place [n] float32
  Tensor exp_avg;              // m, in place [n] float32, bfloat16 or float8_e4m3 codes
  Tensor exp_avg_sq;           // v, in place [n] in the dtype of m, or bfloat16 if m is codes
  Tensor grad;                 // [n] float32
  Tensor weight;               // optional = [n] bfloat16: new w
  Tensor amax = {};            // optional [1] float32: = max(itself, max |master|) after the update
  Tensor grad_sum_of_squares;  // [1] float32 on the device; unused if grad_clip <= 0
  Tensor skip = {};            // optional [1] float32 (kernels/optimizer/skip_update.h)
  AdamwOptions options;
  // With codes, the random bits of an element depend on the key of the step and on the element's index in the model.
  uint64_t random_key = 0;
  MatrixRange range = {};  // indices of the elements
};
void adamw(const Adamw& args, Stream& stream);

}  // namespace octavo

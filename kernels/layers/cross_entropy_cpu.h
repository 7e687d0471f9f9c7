// Shared code of the CPU references of the cross entropy ops: the steps over a row of logits or a rank's part of it.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/math/cpu_math.h"

namespace octavo::cpu {

// The largest logit of a row and the sum of e^(logit - max) over the row.
struct SoftmaxRow {
  float max;
  float sum;
};

// Returns the largest logit, ignoring NaN. A NaN makes sum_of_exp NaN instead.
template <typename T>
float row_max(const T* logits, int64_t vocab) {
  float max = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : max)
  for (int64_t v = 0; v < vocab; ++v) {
    const float x = static_cast<float>(logits[v]);
    max = x > max ? x : max;
  }
  return max;
}

template <typename T>
float sum_of_exp(const T* logits, int64_t vocab, float max) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t v = 0; v < vocab; ++v) sum += exp_fast(static_cast<float>(logits[v]) - max);
  return sum;
}

inline float log_sum_exp(SoftmaxRow row) { return std::log(row.sum) + row.max; }

// The softmax of a row, and the logit of its target.
struct WholeRow {
  SoftmaxRow softmax;
  float target_logit;
};

// The factors of the total scale * (loss + z_loss * log_sum_exp(row)^2).
struct LossScale {
  float scale;
  float z_loss;
};

// Computes d_logits[v] = scale * ((1 + 2 z_loss log_sum_exp) e^(logits[v] - max) / sum - (v == target)). d_logits may
// alias logits. A target outside [0, vocab) is in another rank's part.
template <typename T>
void loss_gradient(T* d_logits, const T* logits, int64_t vocab, int64_t target, SoftmaxRow row, LossScale of_loss) {
  const auto [scale, z_loss] = of_loss;
  const float softmax_scale = z_loss == 0 ? scale : scale * (1 + 2 * z_loss * log_sum_exp(row));
  const float inverse = softmax_scale / row.sum;
  const bool has_target = target >= 0 && target < vocab;
  const float target_logit = has_target ? static_cast<float>(logits[target]) : 0.0f;
#pragma omp simd
  for (int64_t v = 0; v < vocab; ++v) {
    const float x = static_cast<float>(logits[v]);
    const float gradient = exp_fast(x - row.max) * inverse;
    d_logits[v] = T(x == -std::numeric_limits<float>::infinity() ? 0.0f : gradient);  // exp_fast is above 0.
  }
  if (has_target) d_logits[target] = T(exp_fast(target_logit - row.max) * inverse - scale);
}

// Computes the loss, the z-loss and the gradient of token t for a CrossEntropy or CrossEntropyParallel. The first
// column of the logits is the entry `vocab_begin` of the vocabulary. `find_row` returns the WholeRow of token t.
template <typename T, typename Args, typename FindRow>
void cross_entropy_row(const Args& args, int64_t t, int64_t vocab_begin, const FindRow& find_row) {
  const int64_t vocab = args.logits.dim(1);
  const T* logits = args.logits.template data<T>() + t * vocab;
  T* d_logits = args.d_logits.defined() ? args.d_logits.template data<T>() + t * vocab : nullptr;
  const int64_t target = args.targets.template data<int32_t>()[t];
  float& loss = args.losses.template data<float>()[t];
  float* z_loss = args.z_losses.defined() ? args.z_losses.template data<float>() + t : nullptr;
  if (target < 0) {
    loss = 0;
    if (z_loss != nullptr) *z_loss = 0;
    if (d_logits != nullptr) std::fill_n(d_logits, vocab, T(0.0f));
    return;
  }
  const auto [row, target_logit] = find_row(t, logits, target);
  const float normalizer = log_sum_exp(row);
  loss = normalizer - target_logit;
  if (z_loss != nullptr) *z_loss = args.z_loss * normalizer * normalizer;
  if (d_logits == nullptr) return;
  loss_gradient(d_logits, logits, vocab, target - vocab_begin, row, {args.scale, args.z_loss});
}

}  // namespace octavo::cpu

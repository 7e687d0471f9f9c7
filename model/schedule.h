// Optimizer settings and the learning-rate schedule.
//
// The learning rate of step s, counted from 1 (w = warmup_steps, n = total steps, r = min_lr_ratio):
//   s <= w:      lr * s / w
//   constant:    lr
//   linear:      lr * (1 - (1-r) * t),                     t = (s-w)/(n-w)
//   cosine:      lr * (r + (1-r) * (1 + cos(pi t)) / 2)
//   wsd:         lr until the last decay_steps, then linear down to lr * r at step n (Hu et al., arXiv 2404.06395)
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace octavo {

enum class Schedule : uint8_t { kCosine, kLinear, kConstant, kWsd };

struct OptimizerConfig {
  double lr = 3e-4;
  double min_lr_ratio = 0.1;
  int64_t warmup_steps = 200;
  Schedule schedule = Schedule::kCosine;
  int64_t decay_steps = 0;  // 0: a tenth of the steps
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double grad_clip = 1.0;  // 0: no clipping
  DType state_dtype = DType::kFloat32;
};

// The learning rate of step `step` of `total_steps`; steps beyond the last keep the last one's.
double learning_rate(const OptimizerConfig& config, int64_t step, int64_t total_steps);

}  // namespace octavo

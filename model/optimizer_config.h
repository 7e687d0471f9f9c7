// The optimizer section of the config: AdamW (model/optimizer.h) and its learning rate (model/schedule.h).
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace octavo {

enum class Schedule : uint8_t { kCosine, kLinear, kConstant, kWsd, kInverseSqrt };
enum class Decay : uint8_t { kLinear, kSqrt };

struct OptimizerConfig {
  double lr = 3e-4;
  double min_lr_ratio = 0.1;
  int64_t warmup_steps = 200;
  Schedule schedule = Schedule::kCosine;
  int64_t decay_steps = 0;  // 0: a tenth of the steps
  Decay decay = Decay::kLinear;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double grad_clip = 1.0;  // 0: no clipping
  DType state_dtype = DType::kFloat32;
};

}  // namespace octavo

// The optimizer section of the config: AdamW (model/optimizer.h) and its learning rate (model/schedule.h).
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace octavo {

enum class Schedule : uint8_t { kCosine, kLinear, kConstant, kWsd };

struct OptimizerConfig {
  double lr = 3e-4;            // peak learning rate
  double min_lr_ratio = 0.1;   // the last step's learning rate over the peak
  int64_t warmup_steps = 200;  // linear from lr / warmup_steps; 0: none
  Schedule schedule = Schedule::kCosine;
  int64_t decay_steps = 0;  // wsd: length of the decay at the end; 0: a tenth of the steps
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;            // on tensors of two or more dimensions
  double grad_clip = 1.0;               // largest global gradient norm; 0: no clipping
  DType state_dtype = DType::kFloat32;  // of the moments: float32 or bfloat16
};

}  // namespace octavo

#include "model/optimizer/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace octavo {

double learning_rate(const OptimizerConfig& config, int64_t step, int64_t total_steps) {
  const double warmup = static_cast<double>(config.warmup_steps);
  const double s = static_cast<double>(std::min(step, total_steps));
  const double n = static_cast<double>(total_steps);
  if (s <= warmup) return config.lr * s / warmup;
  const double r = config.min_lr_ratio;
  const double t = std::clamp((s - warmup) / std::max(n - warmup, 1.0), 0.0, 1.0);
  switch (config.schedule) {
    case Schedule::kConstant:
      return config.lr;
    case Schedule::kLinear:
      return config.lr * (1 - (1 - r) * t);
    case Schedule::kCosine:
      return config.lr * (r + (1 - r) * (1 + std::cos(std::numbers::pi * t)) / 2);
    case Schedule::kInverseSqrt:
      return config.lr * std::max(r, std::sqrt(std::max(warmup, 1.0) / s));
    case Schedule::kWsd: {
      const int64_t decay_steps = config.decay_steps > 0 ? config.decay_steps : std::max<int64_t>(total_steps / 10, 1);
      const double decay = static_cast<double>(decay_steps);
      const double into_decay = std::clamp((s - (n - decay)) / decay, 0.0, 1.0);
      return config.lr * (1 - (1 - r) * (config.decay_type == Decay::kSqrt ? std::sqrt(into_decay) : into_decay));
    }
  }
  return config.lr;
}

}  // namespace octavo

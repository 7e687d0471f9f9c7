// Statistics of a step's FP8 casts, every logging.fp8_stats_every steps: taken by the model, copied to the host behind
// the step, written to metrics.jsonl and looked over for a warning (docs/precision.md says how to read them).
#pragma once

#include <optional>
#include <span>
#include <string>

#include "app/config/config.h"
#include "model/linear/fp8_stats_table.h"

namespace octavo {

// One tensor of a linear in a step.
struct Fp8TensorReport {
  int64_t layer = 0;
  const char* linear = "";  // qkv, o, gate_up, down
  const char* tensor = "";  // input, output_gradient, weight
  bool per_tensor = false;  // one scale a tensor
  Fp8TensorStats stats;

  double saturated_share() const;  // of all elements
  double flushed_share() const;    // of those that are not zero
};

// Saturation loses of the largest values, always towards zero. Of a normal distribution 0.1% lie beyond 3.3 deviations,
// and its largest of a million values at 5, so the scale was then made for a tensor of two thirds the size: a history
// that keeps up with its tensor does not come to that.
inline constexpr double kMostSaturated = 1e-3;
// The fifth of a normal distribution nearest to zero holds 0.4% of its sum of squares: without it the tensor is 6.5% of
// its norm away from itself, more than twice as far as rounding to e4m3 takes it (2.6%).
inline constexpr double kMostFlushed = 0.2;

// One line that counts the tensors beyond these limits, or whose amax is zero or not finite, and names the worst; none
// when all are well.
std::optional<std::string> fp8_warning(int64_t step, std::span<const Fp8TensorReport> tensors);

// Whether the config asks for statistics and has linears to take them of.
bool reports_fp8(const Config& config);

}  // namespace octavo

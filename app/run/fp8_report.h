// Statistics of a step's FP8 casts, collected every logging.fp8_stats_every steps. The model computes the statistics.
// After the step they are copied to the host, written to metrics.jsonl and checked for a warning. docs/precision.md
// explains them.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "app/config/config.h"
#include "model/linear/fp8_stats_table.h"

namespace octavo {

// Statistics of one tensor of a linear in one step.
struct Fp8TensorReport {
  int64_t layer = 0;
  const char* linear = "";  // Name of the linear: qkv, o, gate_up or down.
  const char* tensor = "";  // Name of the tensor: input, output_gradient or weight.
  bool per_tensor = false;  // Whether the tensor has a single scale.
  Fp8TensorStats stats;

  double saturated_share() const;  // Share of all elements that saturated.
  double flushed_share() const;    // Share of the nonzero elements that were flushed to zero.
};

// Largest acceptable share of saturated elements. Saturation makes large values smaller, which biases the tensor
// towards zero. In a normal distribution 0.1% of the values exceed 3.3 standard deviations, while the largest of a
// million values is near 5. So this limit is reached only if the scale fits a tensor that is a third smaller, which
// does not happen while the amax history follows the tensor.
inline constexpr double kMaxSaturated = 1e-3;
// Largest acceptable share of values that are flushed to zero. The smallest fifth of a normal distribution holds 0.4%
// of its sum of squares. Setting these values to zero changes the tensor by 6.5% of its norm, more than twice the
// change by rounding to e4m3 (2.6%).
inline constexpr double kMaxFlushed = 0.2;

// Returns one line with the number of tensors that exceed these limits or whose amax is zero or not finite, and the
// worst tensor. Returns nothing if there are none.
std::optional<std::string> fp8_warning(int64_t step, std::span<const Fp8TensorReport> tensors);

// Returns whether the config requests statistics and has FP8 linears.
bool reports_fp8(const Config& config);

}  // namespace octavo

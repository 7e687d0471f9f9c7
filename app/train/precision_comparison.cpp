#include "app/train/precision_comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "app/log/step_log.h"
#include "app/process/events.h"
#include "core/format.h"
#include "core/log.h"

namespace octavo {

double precision_gap(std::span<const double> fp8, std::span<const double> bfloat16) {
  double difference = 0;
  for (size_t i = 0; i < bfloat16.size(); ++i) difference += std::abs(fp8[i] - bfloat16[i]);
  const double gap = difference / std::accumulate(bfloat16.begin(), bfloat16.end(), 0.0);
  return std::isfinite(gap) ? gap : std::numeric_limits<double>::infinity();
}

PrecisionComparison::PrecisionComparison(Training& training)
    : training_(training),
      guard_(training.config().precision_guard),
      enabled_(has_precision_guard(training.config())) {}

bool PrecisionComparison::due(int64_t step) const {
  // A run that resumes at the last step of a fallback is already in FP8. An uninterrupted run is in bfloat16 here.
  return enabled_ && step % guard_.every == 0 && !running() && !in_fallback(training_.job()) &&
         step != training_.start().bfloat16_until;
}

bool PrecisionComparison::ends_fallback(int64_t step) const {
  return in_fallback(training_.job()) && step >= training_.start().bfloat16_until;
}

void PrecisionComparison::begin(Progress before) {
  before_ = std::move(before);
  const int64_t last = std::min(before_.step + guard_.steps, training_.config().training.steps);
  training_.try_other_precision(before_.step, [&] {
    for (int64_t step = before_.step + 1; step <= last; ++step)
      bfloat16_losses_.push_back(training_.loss_of_step(step));
  });
  training_.rewind_data(before_);
}

void PrecisionComparison::add(int64_t step, double loss, bool logs) {
  gap_.reset();
  if (!running()) return;
  fp8_losses_.push_back(loss);
  if (fp8_losses_.size() < bfloat16_losses_.size()) return;
  gap_ = precision_gap(fp8_losses_, bfloat16_losses_);
  bfloat16_losses_.clear();
  fp8_losses_.clear();
  if (!logs) return;
  const std::string found =
      fmt::format("precision.guard: the losses of {} in FP8 differ from those in bfloat16 by {:.4g} of their mean",
                  describe_steps(before_.step + 1, step), unsigned_nan(*gap_));
  if (*gap_ <= guard_.tolerance) return log_info("{}", found);
  log_event(EventKind::kWarning, step, "{}, more than {}", found, guard_.tolerance);
}

bool PrecisionComparison::wants_rollback() const {
  return gap_ && *gap_ > guard_.tolerance && guard_.action == OnPrecisionGap::kBFloat16;
}

Progress PrecisionComparison::fallback() const {
  Progress progress = before_;
  progress.bfloat16_until = before_.step + guard_.fallback_steps;
  return progress;
}

}  // namespace octavo

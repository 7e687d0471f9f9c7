#include "app/guard/precision_guard.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace octavo {

void PrecisionGuard::begin(int64_t step, std::vector<double> losses) {
  first_ = step;
  expected_ = std::move(losses);
  difference_ = 0;
}

std::optional<double> PrecisionGuard::compare(int64_t step, double loss) {
  const int64_t i = step - first_ - 1;
  if (i < 0 || i >= std::ssize(expected_)) return std::nullopt;
  difference_ += std::abs(loss - expected_[static_cast<size_t>(i)]);
  if (i + 1 < std::ssize(expected_)) return std::nullopt;
  const double gap = difference_ / std::accumulate(expected_.begin(), expected_.end(), 0.0);
  return std::isfinite(gap) ? gap : std::numeric_limits<double>::infinity();
}

}  // namespace octavo

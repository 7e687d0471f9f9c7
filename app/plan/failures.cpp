#include "app/plan/failures.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace octavo {

namespace {

constexpr double kDay_s = 86400;
constexpr double kRestart_s = 22;
constexpr double kRestartOfAGpu_s = 265.0 / 96000;

double between_failures_s(const FailureRates& rates, int64_t gpus) {
  const double a_day = rates.failures_per_gpu_day * static_cast<double>(gpus);
  return a_day > 0 ? kDay_s / a_day : std::numeric_limits<double>::infinity();
}

}  // namespace

double restart_seconds(int64_t gpus) { return kRestart_s + kRestartOfAGpu_s * static_cast<double>(gpus); }

RunTimes run_times(const FailureRates& rates, int64_t gpus, double steps_s, double interval_s) {
  RunTimes g;
  g.between_failures_s = between_failures_s(rates, gpus);
  g.restart_s = rates.restart_s > 0 ? rates.restart_s : restart_seconds(gpus);
  g.saving_s = steps_s / interval_s * rates.save_s;
  g.wall_s = steps_s + g.saving_s;
  const double m = g.between_failures_s;
  if (std::isfinite(m)) {
    g.wall_s = m * std::exp(g.restart_s / m) * std::expm1((interval_s + rates.save_s) / m) * steps_s / interval_s;
    g.failures = g.wall_s / m;
    const double lost_s = g.wall_s - steps_s - g.saving_s;
    g.restarting_s = std::min(g.failures * g.restart_s, lost_s);
    g.repeating_s = lost_s - g.restarting_s;
  }
  g.share = steps_s / g.wall_s;
  return g;
}

double best_interval_s(const FailureRates& rates, int64_t gpus) {
  const double m = between_failures_s(rates, gpus);
  const double d = rates.save_s;
  if (!std::isfinite(m) || d > 2 * m) return m;
  const double half = d / (2 * m);
  return std::sqrt(2 * d * m) * (1 + std::sqrt(half) / 3 + half / 9) - d;
}

}  // namespace octavo

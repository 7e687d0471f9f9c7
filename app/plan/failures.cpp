#include "app/plan/failures.h"

#include <cmath>

namespace octavo {

double restart_seconds(int64_t gpus) { return 22 + 265.0 / 96000 * static_cast<double>(gpus); }

double seconds_between_failures(const FailureRates& rates, int64_t gpus) {
  return rates.gpu_mtbf_hours * 3600 / static_cast<double>(gpus);
}

double goodput(const FailureRates& rates, int64_t gpus, double interval_s) {
  const double m = seconds_between_failures(rates, gpus);
  const double restart_s = rates.restart_s > 0 ? rates.restart_s : restart_seconds(gpus);
  return interval_s / (m * std::exp(restart_s / m) * std::expm1((interval_s + rates.save_s) / m));
}

double best_interval_s(const FailureRates& rates, int64_t gpus) {
  return std::sqrt(2 * rates.save_s * seconds_between_failures(rates, gpus));
}

}  // namespace octavo

#include "app/log/step.h"

#include <algorithm>
#include <numeric>

namespace octavo {

int64_t Step::num_targets() const { return std::accumulate(targets.begin(), targets.end(), int64_t{0}); }

double Step::mean(double sum) const { return sum / static_cast<double>(std::max<int64_t>(num_targets(), 1)); }

double Step::loss() const { return mean(std::accumulate(loss_sums.begin(), loss_sums.end(), 0.0)); }

}  // namespace octavo

// The median of measurements.
#pragma once

#include <algorithm>
#include <vector>

namespace octavo {

// The middle one by size, of an even number the mean of the two in the middle. There is one at least.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace octavo

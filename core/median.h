// The median of measurements.
#pragma once

#include <algorithm>
#include <vector>

namespace octavo {

// Returns the median of at least one value. For an even number of values it is the mean of the two middle ones.
inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace octavo

#include "core/near_sizes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace octavo {

std::vector<int64_t> multiples_near(int64_t size, int64_t unit, SizeRange range, const SizeCheck& passes) {
  std::vector<int64_t> near;
  const int64_t below = size / unit * unit;
  for (const int64_t multiple : {below, below + unit}) {
    if (multiple >= range.smallest && multiple <= range.largest && (!passes || passes(multiple)))
      near.push_back(multiple);
  }
  return near;
}

std::vector<int64_t> divisors_near(int64_t size, int64_t whole, const SizeCheck& passes) {
  const auto suits = [&](int64_t divisor) { return whole % divisor == 0 && (!passes || passes(divisor)); };
  std::vector<int64_t> near;
  int64_t below = std::min(size, whole + 1) - 1;
  while (below > 0 && !suits(below)) --below;
  if (below > 0) near.push_back(below);
  int64_t above = size + 1;
  while (above <= whole && !suits(above)) ++above;
  if (above <= whole) near.push_back(above);
  return near;
}

std::string would_work(const std::vector<int64_t>& sizes, const std::string& of_what) {
  return sizes.empty() ? "" : fmt::format("; {}{} would work", fmt::join(sizes, " or "), of_what);
}

}  // namespace octavo

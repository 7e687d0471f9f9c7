#include "core/near_sizes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

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
  int64_t below = 0;
  int64_t above = 0;
  const auto consider = [&](int64_t divisor) {
    const bool is_nearer = divisor < size ? divisor > below : above == 0 || divisor < above;
    if (is_nearer && (!passes || passes(divisor))) (divisor < size ? below : above) = divisor;
  };
  for (int64_t divisor = 1; divisor <= whole / divisor; ++divisor) {
    if (whole % divisor != 0) continue;
    consider(divisor);
    consider(whole / divisor);
  }
  std::vector<int64_t> near;
  if (below > 0) near.push_back(below);
  if (above > 0) near.push_back(above);
  return near;
}

std::string would_work(const std::vector<int64_t>& sizes, const std::string& of_what) {
  return sizes.empty() ? "" : fmt::format("; {}{} would work", fmt::join(sizes, " or "), of_what);
}

}  // namespace octavo

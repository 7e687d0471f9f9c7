// What would do in place of a size that does not divide, for messages.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace octavo {

struct SizeRange {
  int64_t smallest = 1;
  int64_t largest = std::numeric_limits<int64_t>::max();
};

// Whether a size would do.
using SizeCheck = std::function<bool(int64_t)>;

// The multiples of `unit` next to `size`, which is none: the one below and the one above where they are in the range
// and pass the check.
std::vector<int64_t> multiples_near(int64_t size, int64_t unit, SizeRange range = {}, const SizeCheck& passes = {});

// The divisors of `whole` next to `size`, which is none: the largest below and the smallest above that pass the check.
std::vector<int64_t> divisors_near(int64_t size, int64_t whole, const SizeCheck& passes = {});

// "; 3 or 6 would work", "; 3 or 6 ranks would work" with " ranks" as `of_what`; nothing where there are no sizes.
std::string would_work(const std::vector<int64_t>& sizes, const std::string& of_what = "");

}  // namespace octavo

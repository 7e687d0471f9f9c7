// Suggests valid sizes close to an invalid one, for messages.
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

// Returns whether a size is valid.
using SizeCheck = std::function<bool(int64_t)>;

// Returns the multiples of `unit` just below and just above `size`, which is not a multiple, if they are in the range
// and pass the check.
std::vector<int64_t> multiples_near(int64_t size, int64_t unit, SizeRange range = {}, const SizeCheck& passes = {});

// Returns the largest divisor of `whole` below `size` and the smallest one above it that pass the check. `size` is not
// a divisor.
std::vector<int64_t> divisors_near(int64_t size, int64_t whole, const SizeCheck& passes = {});

// Returns "; 3 or 6 would work", or "; 3 or 6 ranks would work" if `of_what` is " ranks". Returns an empty text if
// there are no sizes.
std::string would_work(const std::vector<int64_t>& sizes, const std::string& of_what = "");

}  // namespace octavo

// Suggestions for messages: valid sizes close to an invalid one, and the known name that a misspelt name probably
// means.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo {

struct SizeRange {
  int64_t smallest = 1;
  int64_t largest = std::numeric_limits<int64_t>::max();
};

// Function that returns whether a size is valid.
using SizeCheck = std::function<bool(int64_t)>;

// Returns the largest multiple of `unit` up to `size` and the next above, if they are in range and pass the check.
std::vector<int64_t> multiples_near(int64_t size, int64_t unit, SizeRange range = {}, const SizeCheck& passes = {});

// Returns the largest divisor of `whole` below `size` and the smallest one from `size` on that pass the check.
std::vector<int64_t> divisors_near(int64_t size, int64_t whole, const SizeCheck& passes = {});

// Returns "; 3 or 6 would work", or "; 3 or 6 ranks would work" if `of_what` is " ranks". Returns an empty text if
// there are no sizes.
std::string would_work(const std::vector<int64_t>& sizes, const std::string& of_what = "");

// Returns the sizes as words: "32, 64 or 128".
// Requires: there are at least two sizes.
std::string one_of(std::span<const int64_t> sizes);

// Returns the edit distance (Levenshtein). A name that lacks its beginning or end (warmup for warmup_steps, batch_size
// for global_batch_size) is close to the whole name.
size_t name_distance(std::string_view written, std::string_view known);

// Returns the largest distance at which a name may be a misspelling. It is small enough that some letters must agree.
inline size_t largest_slip(std::string_view written) {
  return std::min(std::max<size_t>(1, written.size()) - 1, std::max<size_t>(2, written.size() / 2));
}

// Returns the nearest known name if it is close enough to be meant.
std::optional<std::string> nearest_name(std::string_view written, std::span<const std::string> known);

}  // namespace octavo

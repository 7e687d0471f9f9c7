// Finds the known name that a misspelt name probably means.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace octavo {

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

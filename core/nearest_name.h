// What somebody meant who wrote a name that there is not.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace octavo {

// The edit distance (Levenshtein), but a name cut short (warmup of warmup_steps, batch_size of global_batch_size) is
// near the whole.
size_t name_distance(std::string_view written, std::string_view known);

// How far a name is at most from one that may have been meant; not so far that none of its letters stays.
inline size_t largest_slip(std::string_view written) {
  return std::min(std::max<size_t>(1, written.size()) - 1, std::max<size_t>(2, written.size() / 2));
}

// The nearest of the known names, where one may have been meant.
std::optional<std::string> nearest_name(std::string_view written, std::span<const std::string> known);

}  // namespace octavo

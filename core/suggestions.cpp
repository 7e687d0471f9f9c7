#include "core/suggestions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>

namespace octavo {

namespace {

// Returns Levenshtein's distance: the number of insertions, deletions and substitutions that turn one word into the
// other.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

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

std::string one_of(std::span<const int64_t> sizes) {
  return fmt::format("{} or {}", fmt::join(sizes.first(sizes.size() - 1), ", "), sizes.back());
}

size_t name_distance(std::string_view written, std::string_view known) {
  constexpr size_t kTellingLength = 4, kCutShort = 2;
  const size_t distance = edit_distance(written, known);
  const bool is_part = written.size() >= kTellingLength && known.find(written) != std::string_view::npos;
  return is_part ? std::min(distance, kCutShort) : distance;
}

std::optional<std::string> nearest_name(std::string_view written, std::span<const std::string> known) {
  const auto nearest =
      std::ranges::min_element(known, {}, [&](const std::string& name) { return name_distance(written, name); });
  if (nearest == known.end() || name_distance(written, *nearest) > largest_slip(written)) return std::nullopt;
  return *nearest;
}

}  // namespace octavo

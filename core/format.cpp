#include "core/format.h"

#include <fmt/format.h>

#include <cmath>

namespace octavo {

std::string with_thousands_separators(int64_t value) {
  std::string digits = std::to_string(value);
  const size_t first = value < 0 ? 1 : 0;
  for (size_t end = digits.size(); end > first + 3; end -= 3) digits.insert(end - 3, 1, ',');
  return digits;
}

std::string format_duration(double seconds) {
  constexpr int64_t kMinute = 60;
  constexpr int64_t kHour = 60 * kMinute;
  constexpr int64_t kDay = 24 * kHour;
  constexpr double kLongest = 1e15;
  if (!(seconds >= 0 && seconds < kLongest)) return "-";
  const int64_t whole = std::llround(seconds);
  if (whole < kMinute) return fmt::format("{}s", whole);
  if (whole < kHour) return fmt::format("{}m", whole / kMinute);
  if (whole < kDay) return fmt::format("{}h {}m", whole / kHour, whole % kHour / kMinute);
  return fmt::format("{}d {}h", whole / kDay, whole % kDay / kHour);
}

}  // namespace octavo

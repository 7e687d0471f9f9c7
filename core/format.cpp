#include "core/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "core/error.h"

namespace octavo {

std::string with_thousands_separators(int64_t value) {
  std::string digits = std::to_string(value);
  const size_t first = value < 0 ? 1 : 0;
  for (size_t end = digits.size(); end > first + 3; end -= 3) digits.insert(end - 3, 1, ',');
  return digits;
}

std::string with_unit(int64_t value) {
  constexpr double kThousand = 1e3;
  auto shown = static_cast<double>(value);
  if (std::abs(shown) < kThousand) return std::to_string(value);
  size_t unit = 0;
  for (shown /= kThousand; std::abs(shown) >= kThousand - 0.5 && unit < 3; ++unit) shown /= kThousand;
  const int decimals = std::abs(shown) < 9.995 ? 2 : std::abs(shown) < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}{}", shown, decimals, "KMBT"[unit]);
}

double unsigned_nan(double value) { return std::isnan(value) ? std::abs(value) : value; }

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

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

int64_t parse_bytes(const std::string& text, const char* option) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  std::string unit = end;
  unit.erase(0, unit.find_first_not_of(' ') == std::string::npos ? unit.size() : unit.find_first_not_of(' '));
  const std::pair<const char*, double> units[] = {{"GiB", 1 << 30}, {"GB", 1e9}, {"MiB", 1 << 20}, {"MB", 1e6}};
  for (const auto& [name, bytes] : units) {
    if (unit == name && end != text.c_str() && std::isfinite(value) && value > 0 && value * bytes < 1e18) {
      return static_cast<int64_t>(value * bytes);
    }
  }
  throw InputError(
      fmt::format("{} is {}, expected a positive number with a unit: 80GiB, 80GB or 81920MiB", option, text));
}

}  // namespace octavo

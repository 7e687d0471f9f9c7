// Formats and parses numbers and words for people.
#pragma once

#include <cstdint>
#include <string>

namespace octavo {

inline constexpr int64_t kKiB = int64_t{1} << 10;
inline constexpr int64_t kMiB = int64_t{1} << 20;
inline constexpr int64_t kGiB = int64_t{1} << 30;

inline double gib(double bytes) { return bytes / static_cast<double>(kGiB); }
inline double gib(int64_t bytes) { return gib(static_cast<double>(bytes)); }

// Returns "16,432" for 16432.
std::string with_thousands_separators(int64_t value);

// Returns at least three digits and a unit: 812, 12.3K, 683K, 8.03B, 15.6T.
std::string with_unit(int64_t value);

// Returns the value to print. Removes the sign of NaN, which devices set differently and fmt would print ("-nan").
double unsigned_nan(double value);

// Returns "42s", "31m", "5h 12m" or "3d 4h", and "-" if `seconds` is negative or not finite.
std::string format_duration(double seconds);

// Returns `text` with lower-case ASCII letters.
std::string lower_case(std::string text);

// Parses "80GiB", "80GB", "81920MiB" or "500MB". Throws an InputError that names `option` for anything else.
int64_t parse_bytes(const std::string& text, const char* option);

}  // namespace octavo

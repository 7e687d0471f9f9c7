// Numbers as people read and write them.
#pragma once

#include <cstdint>
#include <string>

namespace octavo {

inline constexpr int64_t kKiB = int64_t{1} << 10;
inline constexpr int64_t kMiB = int64_t{1} << 20;
inline constexpr int64_t kGiB = int64_t{1} << 30;

inline double gib(double bytes) { return bytes / static_cast<double>(kGiB); }
inline double gib(int64_t bytes) { return gib(static_cast<double>(bytes)); }

// 16432 -> "16,432".
std::string with_thousands_separators(int64_t value);

// Three digits at least, and a unit: 812, 12.3K, 683K, 8.03B, 15.6T.
std::string with_unit(int64_t value);

// The same value to be printed: NaN has no sign, which fmt would show where the device left one ("-nan").
double unsigned_nan(double value);

// 42s, 31m, 5h 12m, 3d 4h; "-" when it is not a finite number of at least 0.
std::string format_duration(double seconds);

// "80GiB", "80GB", "81920MiB", "500MB". InputError naming `option` for anything else.
int64_t parse_bytes(const std::string& text, const char* option);

}  // namespace octavo

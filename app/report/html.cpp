#include "app/report/html.h"

#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "core/printable.h"

namespace octavo {

std::string html_escape(std::string_view text) {
  std::string escaped;
  for (const char c : printable_lines(text)) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string script_escape(std::string_view json) {
  std::string escaped;
  for (const char c : json) escaped += c == '<' ? std::string("\\u003c") : std::string(1, c);
  return escaped;
}

std::string short_number(double value) {
  const double size = std::abs(value);
  if (size >= 1e12) return fmt::format("{:.4g}T", value / 1e12);
  if (size >= 1e9) return fmt::format("{:.4g}B", value / 1e9);
  if (size >= 1e6) return fmt::format("{:.4g}M", value / 1e6);
  if (size >= 1e4) return fmt::format("{:.4g}k", value / 1e3);
  if (size > 0 && size < 1e-4) return fmt::format("{:.3g}", value);
  return fmt::format("{:.6g}", value);
}

std::string tick_label(double value, double largest) {
  if (value == 0) return "0";
  if (largest < 1e-2) {
    std::string text = fmt::format("{:.6g}", value / std::pow(10.0, std::floor(std::log10(std::abs(value)) + 1e-9)));
    return text + fmt::format("e{}", static_cast<int>(std::floor(std::log10(std::abs(value)) + 1e-9)));
  }
  for (const auto& [unit, suffix] : {std::pair(1e12, "T"), {1e9, "B"}, {1e6, "M"}, {1e3, "k"}}) {
    if (largest >= unit && largest >= 1e4) return fmt::format("{:.6g}{}", value / unit, suffix);
  }
  return fmt::format("{:.6g}", value);
}

std::string long_number(double value) {
  if (!std::isfinite(value)) return "-";
  const double size = std::abs(value);
  if (size >= 1e4 && size < 1e18) return with_thousands_separators(std::llround(value));
  if (size > 0 && size < 1e-3) return fmt::format("{:.2e}", value);
  return fmt::format("{:.5g}", value);
}

}  // namespace octavo

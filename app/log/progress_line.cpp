#include "app/log/progress_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/format.h"

namespace octavo {

namespace {

constexpr int kMostColumns = 100;
constexpr const char* kGap = "  ";

// One field of the line.
struct Field {
  std::string text;
  int worth;  // that of the least is left out first
};

std::string memory_field(const ProgressNumbers& numbers) {
  std::string text = fmt::format("{:.1f} GiB", numbers.memory_gib);
  if (numbers.memory_share) text += fmt::format(" {:.0f}%", 100 * *numbers.memory_share);
  return text;
}

// In the order of the line.
std::vector<Field> fields_of(const ProgressNumbers& n) {
  const double share = static_cast<double>(n.step) / static_cast<double>(std::max<int64_t>(n.total_steps, 1));
  const std::string wps = std::isfinite(n.wps) ? with_thousands_separators(std::llround(n.wps)) : "-";
  std::vector<Field> fields = {
      {fmt::format("{:.1f}%", 100 * share), 9},
      {fmt::format("step {}/{}", with_thousands_separators(n.step), with_thousands_separators(n.total_steps)), 7},
      {fmt::format("{} tokens", with_unit(n.tokens)), 3},
      {fmt::format("epoch {:.2f}", n.epoch), 1},
      {fmt::format("loss {:.4f}", n.loss), 8},
      {fmt::format("{} wps", wps), 5},
      {memory_field(n), 2},
      {fmt::format("eta {}", format_duration(n.eta_s)), 6}};
  if (n.mfu) fields.insert(fields.begin() + 6, {fmt::format("mfu {:.1f}%", 100 * *n.mfu), 4});
  return fields;
}

size_t length_of(const std::vector<Field>& fields) {
  size_t length = 0;
  for (const Field& field : fields) length += field.text.size();
  return length + (fields.size() - 1) * std::char_traits<char>::length(kGap);
}

}  // namespace

void Smoothed::add(double value) {
  constexpr double kKept = 0.95;
  if (!std::isfinite(value)) return;
  sum_ = kKept * sum_ + (1 - kKept) * value;
  weight_ = kKept * weight_ + (1 - kKept);
}

double Smoothed::value() const { return weight_ > 0 ? sum_ / weight_ : std::numeric_limits<double>::quiet_NaN(); }

std::string progress_line(const ProgressNumbers& numbers, int columns, bool colors) {
  // A line as long as the terminal is wide would leave it to the terminal where the next character goes.
  const auto room = static_cast<size_t>(std::clamp(columns - 1, 1, kMostColumns));
  std::vector<Field> fields = fields_of(numbers);
  const auto by_worth = [](const Field& a, const Field& b) { return a.worth < b.worth; };
  while (fields.size() > 1 && length_of(fields) > room) {
    fields.erase(std::min_element(fields.begin(), fields.end(), by_worth));
  }
  std::string& first = fields.front().text;
  first = first.substr(0, room);
  if (colors) first = fmt::format("\x1b[1;32m{}\x1b[0m", first);
  std::string line;
  for (const Field& field : fields) line += (line.empty() ? "" : kGap) + field.text;
  return line;
}

}  // namespace octavo

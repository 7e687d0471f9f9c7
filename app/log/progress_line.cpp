#include "app/log/progress_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/format.h"

namespace octavo {

namespace {

constexpr int kMaxColumns = 100;
constexpr const char* kGap = "  ";

// A field of the progress line.
struct Field {
  std::string text;
  int worth;  // Importance. The least important fields are omitted first.
};

// Returns the number of epochs over the dataset with the most epochs.
double most_epochs(const MetricRow& row) {
  double most = 0;
  for (const auto& [name, epochs] : row.by_dataset("epochs")) most = std::max(most, epochs);
  return most;
}

// Returns the fields in the order of the line.
std::vector<Field> fields_of(const MetricRow& row, double eta_s, double gpu_gib) {
  const double share = static_cast<double>(row.step) / static_cast<double>(std::max<int64_t>(row.total_steps, 1));
  const double wps = row.at("wps");
  const double memory_gib = row.at("memory_gib");
  std::vector<Field> fields = {
      {fmt::format("{:.1f}%", 100 * share), 9},
      {fmt::format("step {}/{}", with_thousands_separators(row.step), with_thousands_separators(row.total_steps)), 7},
      {fmt::format("{} tokens", with_unit(std::llround(row.at("tokens")))), 3},
      {fmt::format("epoch {:.2f}", most_epochs(row)), 1},
      {fmt::format("loss {:.4f}", row.at("loss")), 8},
      {fmt::format("{} wps", std::isfinite(wps) ? with_thousands_separators(std::llround(wps)) : "-"), 5}};
  if (const auto mfu = row.get("mfu")) fields.push_back({fmt::format("mfu {:.1f}%", 100 * *mfu), 4});
  fields.push_back({fmt::format("{:.1f} GiB", memory_gib), 2});
  if (gpu_gib > 0) fields.back().text += fmt::format(" {:.0f}%", 100 * memory_gib / gpu_gib);
  fields.push_back({fmt::format("eta {}", format_duration(eta_s)), 6});
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

std::string progress_line(const MetricRow& row, double eta_s, double gpu_gib, int columns, bool colors) {
  // One column stays free: after a line of the terminal's full width, the position of the next character depends on the
  // terminal.
  const auto limit = static_cast<size_t>(std::clamp(columns - 1, 1, kMaxColumns));
  std::vector<Field> fields = fields_of(row, eta_s, gpu_gib);
  const auto by_worth = [](const Field& a, const Field& b) { return a.worth < b.worth; };
  while (fields.size() > 1 && length_of(fields) > limit) {
    fields.erase(std::min_element(fields.begin(), fields.end(), by_worth));
  }
  std::string& first = fields.front().text;
  first = first.substr(0, limit);
  if (colors) first = fmt::format("\x1b[1;32m{}\x1b[0m", first);
  std::string line;
  for (const Field& field : fields) line += (line.empty() ? "" : kGap) + field.text;
  return line;
}

}  // namespace octavo

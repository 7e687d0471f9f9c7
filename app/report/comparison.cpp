#include "app/report/comparison.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <ranges>
#include <set>

#include "core/format.h"
#include "core/printable.h"
#include "core/table.h"

namespace octavo {

namespace {

constexpr size_t kMaxCellBytes = 40;

constexpr std::array kSeeds = {"training.seed", "data.seed"};
bool is_seed(const std::string& key) { return std::ranges::count(kSeeds, key) > 0; }

bool affects_results(const std::string& key) {
  return !key.starts_with("logging.") && !key.starts_with("checkpoint.") && !key.starts_with("plan.");
}

const std::string& value_at(const RunRecords& run, const std::string& key) {
  static const std::string kNone = "-";
  const auto found = run.config.find(key);
  return found != run.config.end() ? found->second : kNone;
}

std::vector<std::string> differing(std::span<const RunRecords> runs, bool with_seeds) {
  std::set<std::string> keys;
  for (const RunRecords& run : runs) {
    for (const auto& [key, value] : run.config) {
      if (affects_results(key) && (with_seeds || !is_seed(key))) keys.insert(key);
    }
  }
  std::vector<std::string> found;
  std::ranges::copy_if(keys, std::back_inserter(found), [&](const std::string& key) {
    std::set<std::string> values;  // Runs without the key, such as those of earlier versions, do not count.
    for (const RunRecords& run : runs) {
      if (run.config.contains(key)) values.insert(value_at(run, key));
    }
    return values.size() > 1;
  });
  return found;
}

// The last and the smallest loss in training and in validation. NaN if there is none.
using Losses = std::array<double, 4>;
constexpr const char* kLossNames[] = {"loss", "least loss", "validation loss", "least validation loss"};

// Takes the losses up to step `last`. A run whose newest loss is not finite has no last loss.
Losses losses_of(const RunRecords& run, int64_t last) {
  const auto until = [&](const Series& series) {
    Series taken;
    std::ranges::copy_if(series, std::back_inserter(taken),
                         [&](const Point& p) { return p.x <= static_cast<double>(last); });
    return taken;
  };
  const auto least = [](const Series& series) {
    return series.empty() ? std::nan("") : std::ranges::min_element(series, {}, &Point::y)->y;
  };
  const Series loss = until(run.metric("loss"));
  const Series validation = until(run.metric("validation_loss"));
  const bool lost = loss.empty() || run.metric("loss").back().x < static_cast<double>(run.last_step);
  return {lost ? std::nan("") : tail_mean(loss), least(smooth(loss, smoothing_window(loss.size()))),
          validation.empty() ? std::nan("") : validation.back().y, least(validation)};
}

// Returns "2.3416", "2.3416 ± 0.0021" for several values, or "-" if one is not known.
std::string mean_text(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  double mean = 0;
  double squares = 0;
  for (const double value : values) mean += value / count;
  for (const double value : values) squares += (value - mean) * (value - mean);
  if (!std::isfinite(mean)) return "-";
  return values.size() == 1 ? fmt::format("{:.4f}", mean)
                            : fmt::format("{:.4f} ± {:.4f}", mean, std::sqrt(squares / (count - 1)));
}

int characters_of(const std::string& text) {
  return static_cast<int>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

using Rows = std::vector<std::vector<std::string>>;

// Aligns the columns: the first one on the left, the others on the right. The first row has the titles.
std::string aligned(const Rows& rows) {
  std::vector<int> widths(rows[0].size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], characters_of(row[i]));
  }
  widths[0] = -widths[0];
  Table table;
  for (const auto& row : rows | std::views::drop(1)) {
    table.row();
    for (size_t i = 0; i < row.size(); ++i) table.add({.title = rows[0][i], .width = widths[i]}, row[i]);
  }
  return table.text();
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + '"';
}

std::string run_label(std::span<const RunRecords> runs, const RunRecords& run) {
  return std::ranges::count(runs, run.name, &RunRecords::name) > 1 ? run.dir : run.name;
}

}  // namespace

std::vector<RunGroup> group_runs(std::span<const RunRecords> runs) {
  std::vector<RunGroup> groups;
  std::vector<std::map<std::string, std::string>> configs;  // Config of each run, without the keys that are ignored.
  for (size_t run = 0; run < runs.size(); ++run) {
    auto& config = configs.emplace_back(runs[run].config);
    std::erase_if(config, [](const auto& entry) { return !affects_results(entry.first) || is_seed(entry.first); });
    const auto same_seeds = [&](size_t other) {
      return std::ranges::all_of(
          kSeeds, [&](const char* key) { return value_at(runs[run], key) == value_at(runs[other], key); });
    };
    const auto repeats = [&](const RunGroup& group) {
      return !config.empty() && configs[group[0]] == config && std::ranges::none_of(group, same_seeds);
    };
    const auto found = std::ranges::find_if(groups, repeats);
    if (found != groups.end()) {
      found->push_back(run);
    } else {
      groups.push_back({run});
    }
  }
  return groups;
}

std::string group_name(std::span<const RunRecords> runs, const RunGroup& group) {
  const std::string first = run_label(runs, runs[group[0]]);
  if (group.size() == 1) return first;
  return fmt::format("{} and {} other seed{}", first, group.size() - 1, group.size() == 2 ? "" : "s");
}

Band band_of(std::span<const Series> runs) {
  std::map<double, std::vector<double>> values;
  for (const Series& run : runs) {
    for (const Point& point : run) values[point.x].push_back(point.y);
  }
  Band band;
  for (const auto& [x, all] : values) {
    if (all.size() < runs.size()) continue;
    double sum = 0;
    for (const double y : all) sum += y;
    band.mean.push_back({x, sum / static_cast<double>(all.size())});
    band.low.push_back({x, std::ranges::min(all)});
    band.high.push_back({x, std::ranges::max(all)});
  }
  return band;
}

std::string comparison_table(std::span<const RunRecords> runs, std::span<const RunGroup> groups) {
  const std::vector<std::string> keys = differing(runs, false);
  Rows rows(1, {"run", "steps"});
  rows[0].insert(rows[0].end(), keys.begin(), keys.end());
  rows[0].insert(rows[0].end(), std::begin(kLossNames), std::end(kLossNames));
  for (const RunGroup& group : groups) {
    const RunRecords& first = runs[group[0]];
    const auto steps = group | std::views::transform([&](size_t run) { return runs[run].last_step; });
    auto& row = rows.emplace_back();
    row.push_back(printable(group_name(runs, group)));
    const int64_t last = std::ranges::min(steps);
    row.push_back(with_thousands_separators(last));
    for (const std::string& key : keys) row.push_back(printable(value_at(first, key), kMaxCellBytes));
    std::array<std::vector<double>, std::size(kLossNames)> values;
    for (const size_t run : group) {
      const Losses losses = losses_of(runs[run], last);
      for (size_t i = 0; i < losses.size(); ++i) values[i].push_back(losses[i]);
    }
    std::ranges::transform(values, std::back_inserter(row), mean_text);
  }
  return aligned(rows);
}

std::string comparison_csv(std::span<const RunRecords> runs, std::span<const RunGroup> groups) {
  const std::vector<std::string> keys = differing(runs, true);
  std::string text = fmt::format("{}least_validation_loss", kComparisonHead);
  for (const std::string& key : keys) text += "," + csv_cell(key);
  text += "\n";
  for (size_t group = 0; group < groups.size(); ++group) {
    for (const size_t place : groups[group]) {
      const RunRecords& run = runs[place];
      text += fmt::format("{},{},{},{}", csv_cell(run.name), csv_cell(run.dir), group + 1, run.last_step);
      for (const double loss : losses_of(run, run.last_step))
        text += std::isfinite(loss) ? fmt::format(",{}", loss) : ",";
      for (const std::string& key : keys) text += "," + csv_cell(value_at(run, key));
      text += "\n";
    }
  }
  return text;
}

}  // namespace octavo

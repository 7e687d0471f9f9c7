#include "app/report/report_charts.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "app/run/metric_table.h"
#include "core/error.h"

namespace octavo {

namespace {

using Runs = std::span<const RunRecords>;

// FP8 statistics, by kind of tensor (RunRecords::metrics).
constexpr MetricSpec kFp8Charts[] = {
    {.key = "fp8_saturated",
     .tag = "",
     .title = "FP8 saturation",
     .unit = "% of elements",
     .note = "largest of all tensors of a kind",
     .scale = 100,
     .from_zero = true},
    {.key = "fp8_flushed",
     .tag = "",
     .title = "FP8 flushed to zero",
     .unit = "% of elements",
     .note = "largest of all tensors of a kind",
     .scale = 100,
     .from_zero = true},
};

Series scaled(Series series, double scale) {
  for (Point& point : series) point.y *= scale;
  return series;
}

// The series, and its mean over it where it is long.
void add_series(Chart& chart, const std::string& label, size_t color, Series series, bool smoothed) {
  if (series.empty()) return;
  const double window = smoothed ? smoothing_window(series.size()) : 1;
  if (window == 1) {
    chart.series.push_back({.label = label, .color = color, .style = LineStyle::kPoints, .points = std::move(series)});
    return;
  }
  Series mean = smooth(series, window);
  chart.series.push_back({.color = color, .style = LineStyle::kFaint, .points = std::move(series)});
  chart.series.push_back({.label = label, .color = color, .points = std::move(mean)});
}

std::string id_of(const std::string& name) {
  std::string id;
  for (const char c : name) id += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '-';
  return id;
}

// The names of runs that share one are their folders.
std::vector<std::string> labels_of(Runs runs) {
  std::map<std::string, int> count;
  for (const RunRecords& run : runs) ++count[run.name];
  std::vector<std::string> labels;
  for (const RunRecords& run : runs) labels.push_back(count[run.name] > 1 ? run.dir : run.name);
  return labels;
}

bool has_validation(Runs runs) {
  return std::any_of(runs.begin(), runs.end(),
                     [](const RunRecords& run) { return !run.metric("validation_loss").empty(); });
}

// Beside a line of the same run.
void add_validation(Chart& chart, size_t color, Series series) {
  if (!series.empty())
    chart.series.push_back({.color = color, .style = LineStyle::kDashed, .points = std::move(series)});
}

Chart loss_chart(Runs runs) {
  Chart chart{.id = "loss", .title = "Loss", .unit = "nats per token", .crops = true, .wide = true};
  if (runs.size() == 1) {
    add_series(chart, "training", 0, runs[0].metric("loss"), true);
    add_series(chart, "validation", 1, runs[0].metric("validation_loss"), false);
    return chart;
  }
  if (has_validation(runs)) chart.note = "dashed: validation";
  const std::vector<std::string> labels = labels_of(runs);
  for (size_t i = 0; i < runs.size(); ++i) {
    add_series(chart, labels[i], i, runs[i].metric("loss"), true);
    add_validation(chart, i, runs[i].metric("validation_loss"));
  }
  return chart;
}

Chart gap_chart(Runs runs) {
  Chart chart{.id = "loss-gap", .title = "Relative loss gap", .unit = "%"};
  const std::vector<std::string> labels = labels_of(runs);
  chart.note = fmt::format("(loss - loss of {}) / loss of {}, smoothed{}", labels[0], labels[0],
                           has_validation(runs) ? "; dashed: validation" : "");
  const auto mean = [](const Series& series) { return smooth(series, smoothing_window(series.size())); };
  const Series base = mean(runs[0].metric("loss"));
  const Series& base_validation = runs[0].metric("validation_loss");
  for (size_t i = 1; i < runs.size(); ++i) {
    add_series(chart, labels[i], i, scaled(relative_gap(mean(runs[i].metric("loss")), base), 100), false);
    add_validation(chart, i, scaled(relative_gap(runs[i].metric("validation_loss"), base_validation), 100));
  }
  return chart;
}

Chart metric_chart(const MetricSpec& of, Runs runs) {
  Chart chart{.id = id_of(of.key), .title = of.title, .unit = of.unit, .note = of.note, .from_zero = of.from_zero};
  const std::vector<std::string> labels = labels_of(runs);
  double least = INFINITY;
  double most = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    const Series series = scaled(runs[i].metric(of.key), of.scale);
    for (const Point& point : series) {
      least = std::min(least, point.y);
      most = std::max(most, point.y);
    }
    add_series(chart, runs.size() == 1 ? "" : labels[i], i, series, of.smoothed);
  }
  chart.logarithmic = of.logarithmic && least > 0 && most > 20 * least;
  return chart;
}

// A chart a run's lines, or of several runs one for each name.
std::vector<Chart> group_charts(const MetricSpec& of, Runs runs) {
  const std::string prefix = fmt::format("{}/", of.key);
  const auto add_line = [&](Chart& chart, const std::string& label, size_t color, const RunRecords& run,
                            const std::string& name) {
    add_series(chart, label, color, scaled(run.metric(prefix + name), of.scale), of.smoothed);
  };
  const std::string id = id_of(prefix);
  const Chart empty{
      .id = id, .title = of.title, .unit = of.unit, .note = of.note, .from_zero = of.from_zero, .crops = of.crops};
  std::vector<Chart> charts;
  if (runs.size() == 1) {
    Chart& chart = charts.emplace_back(empty);
    size_t color = 0;
    for (const std::string& name : runs[0].names_below(prefix)) add_line(chart, name, color++, runs[0], name);
    return charts;
  }
  std::set<std::string> names;
  for (const RunRecords& run : runs) {
    const std::vector<std::string> of_run = run.names_below(prefix);
    names.insert(of_run.begin(), of_run.end());
  }
  const std::vector<std::string> labels = labels_of(runs);
  for (const std::string& name : names) {
    Chart& chart = charts.emplace_back(empty);
    chart.id = fmt::format("{}{}", id, charts.size());
    chart.title = fmt::format("{}: {}", of.title, name);
    for (size_t i = 0; i < runs.size(); ++i) add_line(chart, labels[i], i, runs[i], name);
  }
  return charts;
}

}  // namespace

std::vector<Chart> report_charts(Runs runs) {
  std::vector<Chart> charts{loss_chart(runs)};
  if (runs.size() > 1) charts.push_back(gap_chart(runs));
  const auto add_groups = [&](const MetricSpec& of) {
    for (Chart& chart : group_charts(of, runs)) charts.push_back(std::move(chart));
  };
  for (const MetricSpec& of : kMetrics) {
    if (*of.title == '\0') continue;
    if (of.by_dataset) {
      add_groups(of);
    } else {
      charts.push_back(metric_chart(of, runs));
    }
  }
  for (const MetricSpec& of : kFp8Charts) add_groups(of);
  std::erase_if(charts, [](const Chart& chart) { return !chart.has_points(); });
  return charts;
}

std::vector<ChartMark> report_marks(Runs runs) {
  std::vector<ChartMark> marks;
  std::map<EventKind, size_t> count;
  const std::vector<std::string> labels = labels_of(runs);
  for (size_t i = 0; i < runs.size(); ++i) {
    for (auto event = runs[i].events.rbegin(); event != runs[i].events.rend(); ++event) {
      if (!event->step || event->kind == EventKind::kNote || *event->step > runs[i].last_step) continue;
      if (++count[event->kind] > kMaxMarks) continue;
      const std::string of_run = runs.size() == 1 ? "" : labels[i] + ": ";
      marks.push_back({event->kind, static_cast<double>(*event->step), of_run + event->text});
    }
  }
  return marks;
}

}  // namespace octavo

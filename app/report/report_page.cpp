#include "app/report/report_page.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "app/report/page.h"
#include "app/run/metric_table.h"
#include "core/error.h"

namespace octavo {

namespace {

using Json = nlohmann::json;

constexpr double kPercent = 100;

// Charts of the page that precede those of kMetrics.
constexpr MetricSpec kFirstCharts[] = {
    {.key = "loss", .tag = "", .title = "Loss", .unit = "nats per token", .smoothed = true},
    {.key = "loss_gap",
     .tag = "",
     .title = "Relative loss gap",
     .unit = "%",
     .note = "to the first run, smoothed",
     .scale = kPercent},
};
// Charts of the page that follow those of kMetrics. Each chart of FP8 statistics has one curve per kind of tensor
// (RunRecords::metrics).
constexpr MetricSpec kLastCharts[] = {
    {.key = "fp8_saturated",
     .tag = "",
     .title = "FP8 saturation",
     .unit = "% of elements",
     .note = "largest of all tensors of a kind",
     .scale = kPercent,
     .from_zero = true},
    {.key = "fp8_flushed",
     .tag = "",
     .title = "FP8 flushed to zero",
     .unit = "% of elements",
     .note = "largest of all tensors of a kind",
     .scale = kPercent,
     .from_zero = true},
};

std::vector<MetricSpec> charts() {
  std::vector<MetricSpec> all(std::begin(kFirstCharts), std::end(kFirstCharts));
  std::copy_if(std::begin(kMetrics), std::end(kMetrics), std::back_inserter(all),
               [](const MetricSpec& metric) { return *metric.title != '\0'; });
  all.insert(all.end(), std::begin(kLastCharts), std::end(kLastCharts));
  return all;
}

// Metrics that the table of runs shows.
constexpr const char* kSummary[] = {"tokens", "loss",       "validation_loss", "wps",
                                    "mfu",    "memory_gib", "goodput",         "skipped_steps"};

// Metrics that the x axis of the charts can show instead of the step.
constexpr const char* kAxes[] = {"tokens", "wall_s"};

Json chart_json(const MetricSpec& metric) {
  return {{"metric", metric.key},
          {"title", metric.title},
          {"unit", metric.unit},
          {"note", metric.note},
          {"scale", metric.scale},
          {"from_zero", metric.from_zero},
          {"logarithmic", metric.logarithmic}};
}

Json points_json(const Series& series) {
  std::vector<int64_t> x;
  std::vector<double> y;
  for (const Point& point : decimate(series, kMaxPoints)) {
    x.push_back(static_cast<int64_t>(point.x));
    // Rounds the value, so that its text is short.
    y.push_back(std::strtod(fmt::format("{:.6g}", point.y).c_str(), nullptr));
  }
  return {{"x", x}, {"y", y}};
}

Series mean_of(const Series& series) { return smooth(series, smoothing_window(series.size())); }

Json metrics_json(const RunRecords& run, const RunRecords& first) {
  Json metrics = Json::object();
  for (const MetricSpec& chart : charts()) {
    for (const auto& [key, series] : run.metrics) {
      const std::string metric = key.substr(0, key.find('/'));
      if (metric != chart.key && metric != std::string("validation_") + chart.key) continue;
      if (metrics.contains(key)) continue;
      metrics[key] = points_json(series);
      if (chart.smoothed && metric == chart.key && smoothing_window(series.size()) > 1)
        metrics[key]["mean"] = points_json(mean_of(series));
    }
  }
  if (&run == &first) return metrics;
  metrics["loss_gap"] = points_json(relative_gap(mean_of(run.metric("loss")), mean_of(first.metric("loss"))));
  metrics["validation_loss_gap"] =
      points_json(relative_gap(run.metric("validation_loss"), first.metric("validation_loss")));
  return metrics;
}

// Returns the last value, the mean of the last values, the minimum with its step, and the median of the second half, in
// which the speed of the run has settled.
Json summary_json(const RunRecords& run) {
  Json summary = Json::object();
  for (const char* key : kSummary) {
    const Series& series = run.metric(key);
    if (series.empty()) continue;
    const auto least = std::min_element(series.begin(), series.end(), [](auto& a, auto& b) { return a.y < b.y; });
    const auto middle = series.begin() + static_cast<std::ptrdiff_t>(series.size() / 2);
    summary[key] = {{"last", series.back().y},
                    {"tail_mean", tail_mean(series)},
                    {"least", {{"x", least->x}, {"y", least->y}}},
                    {"median", median_of(Series(middle, series.end()))}};
  }
  return summary;
}

Json run_json(const RunRecords& run, const RunRecords& first) {
  std::map<std::string, size_t> counts;
  for (const RunEvent& event : run.events) ++counts[event_kind_name(event.kind)];
  Json axes = Json::object();
  for (const char* key : kAxes) {
    if (!run.metric(key).empty()) axes[key] = points_json(run.metric(key));
  }
  Json events = Json::array();
  std::map<std::string, size_t> left_out;
  for (const RunEvent& event : run.events) {
    const char* kind = event_kind_name(event.kind);
    if (++left_out[kind] + kMaxEvents <= counts[kind]) continue;
    events.push_back({{"time", event.time},
                      {"step", event.step ? Json(*event.step) : Json()},
                      {"kind", kind},
                      {"text", event.text}});
  }
  return {{"name", run.name},
          {"dir", run.dir},
          {"last_step", run.last_step},
          {"axes", axes},
          {"metrics", metrics_json(run, first)},
          {"summary", summary_json(run)},
          {"counts", counts},
          {"events", events},
          {"starts", run.starts},
          {"config", run.config}};
}

}  // namespace

nlohmann::json report_document(std::span<const RunRecords> runs, int64_t reload_s) {
  Json document{{"charts", Json::array()}, {"runs", Json::array()}, {"reload_s", reload_s}};
  for (const MetricSpec& metric : charts()) document["charts"].push_back(chart_json(metric));
  for (const RunRecords& run : runs) document["runs"].push_back(run_json(run, runs.front()));
  return document;
}

std::string report_page(std::span<const RunRecords> runs, int64_t reload_s) {
  return html_page("Runs - octavo report", {"elements", "charts", "report"}, report_document(runs, reload_s));
}

}  // namespace octavo

#include "app/report/pages.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "app/report/comparison.h"
#include "app/run/metric_table.h"
#include "core/error.h"
#include "core/files/embedded_file.h"

namespace octavo {

std::span<const EmbeddedFile> page_files();

namespace {

using Json = nlohmann::json;

std::string_view embedded(std::string_view name) {
  const auto files = page_files();
  const auto found = std::ranges::find(files, name, &EmbeddedFile::name);
  CHECK(found != files.end(), "the page file {} is not embedded", name);
  return found->text;
}

// Returns the document as ASCII text without "<".
std::string text_of(const nlohmann::json& document) {
  std::string text;
  for (const char c : document.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace)) {
    text += c == '<' ? "\\u003c" : std::string(1, c);
  }
  return text;
}

Json items_json(const std::vector<MemoryItem>& items) {
  // Names in the order of Contents.
  constexpr const char* kContents[] = {"other", "weights", "gathered weights", "optimizer", "gradients", "activations"};
  Json rows = Json::array();
  for (const MemoryItem& item : items) {
    rows.push_back({{"name", item.name},
                    {"count", item.count},
                    {"bytes", item.bytes},
                    {"lifetime", lifetime_name(item.lifetime)},
                    {"contents", kContents[static_cast<size_t>(item.contents)]},
                    {"blocks", item.blocks}});
  }
  return rows;
}

// Returns the data of the memory page: the items of the plan with their contents and blocks, and the predicted times of
// the step's ranges. The page's script derives from them when each item is needed.
Json memory_document(const Plan& plan, const StepTimeline& timeline) {
  Json ranges = Json::array();
  for (const StepClock::TimedRange& range : timeline.ranges)
    ranges.push_back({{"name", range.name}, {"begin", range.begin_s}, {"end", range.end_s}});
  const MemoryPlan& memory = plan.job.memory;
  return {{"name", std::filesystem::path(plan.job.config.source).filename().string()},
          {"ranks", plan.job.mesh.shape.ranks()},
          {"layers", plan.job.config.model.num_layers},
          {"items", items_json(memory.items)},
          {"overlaid", items_json(memory.overlaid)},
          {"arena_bytes", memory.arena_bytes},
          {"outside_bytes", memory.budget.outside},
          {"total_bytes", memory.total_bytes()},
          {"available_bytes", memory.budget.available},
          {"fits", memory.fits()},
          {"ranges", ranges},
          {"left_out", timeline.left_out}};
}

// Charts of the page that precede those of kMetrics.
constexpr MetricSpec kFirstCharts[] = {
    {.key = "loss", .tag = "", .title = "Loss", .unit = "nats per token", .smoothed = true, .from_zero = false},
    {.key = "loss_gap",
     .tag = "",
     .title = "Relative loss gap",
     .unit = "%",
     .note = "to the first run, smoothed",
     .scale = 100,
     .from_zero = false},
};
// Charts of the page that follow those of kMetrics. Each chart of FP8 statistics has one curve per kind of tensor
// (RunRecords::metrics).
constexpr MetricSpec kLastCharts[] = {
    {.key = "fp8_saturated",
     .tag = "",
     .title = "FP8 saturation",
     .unit = "% of elements",
     .note = "largest of all tensors of a kind",
     .scale = 100},
    {.key = "fp8_flushed",
     .tag = "",
     .title = "FP8 flushed to zero",
     .unit = "% of elements",
     .note = "largest of all tensors of a kind",
     .scale = 100},
};

std::vector<MetricSpec> charts() {
  std::vector<MetricSpec> all(std::begin(kFirstCharts), std::end(kFirstCharts));
  std::ranges::copy_if(kMetrics, std::back_inserter(all),
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

// Rounds a value, so that its text is short.
double rounded(double value) { return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr); }

Json points_json(const Series& series) {
  std::vector<int64_t> x;
  std::vector<double> y;
  for (const Point& point : decimate(series, kMaxPoints)) {
    x.push_back(static_cast<int64_t>(point.x));
    y.push_back(rounded(point.y));
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

// Returns the mean of the runs of a group as the metrics of one run.
RunRecords mean_of(std::span<const RunRecords> runs, const RunGroup& group) {
  RunRecords mean;
  for (const auto& [key, first] : runs[group[0]].metrics) {
    std::vector<Series> all;
    for (const size_t run : group) all.push_back(runs[run].metric(key));
    if (Series found = band_of(all).mean; !found.empty()) mean.metrics[key] = std::move(found);
  }
  return mean;
}

// Returns the points of a series that have the steps of another one.
Series at_steps_of(const Series& series, const Series& other) {
  Series found;
  std::ranges::copy_if(series, std::back_inserter(found),
                       [&](const Point& point) { return std::ranges::binary_search(other, point.x, {}, &Point::x); });
  return found;
}

// Adds the smallest and the largest values of the runs of a group, "low" and "high", to the metrics of their mean. If a
// metric is smoothed, its smoothed line has them.
void add_bands(Json& metrics, std::span<const RunRecords> runs, const RunGroup& group, const RunRecords& mean) {
  for (auto& [key, points] : metrics.items()) {
    if (mean.metric(key).empty()) continue;  // A gap.
    const bool is_smoothed = points.contains("mean");
    std::vector<Series> all;
    for (const size_t run : group) {
      const Series series = at_steps_of(runs[run].metric(key), mean.metric(key));
      all.push_back(is_smoothed ? mean_of(series) : series);
    }
    const Band band = band_of(all);
    Json& line = is_smoothed ? points["mean"] : points;
    for (const double x : line["x"].get<std::vector<double>>()) {
      const auto at = [&](const Series& series) { return std::ranges::lower_bound(series, x, {}, &Point::x)->y; };
      line["low"].push_back(rounded(at(band.low)));
      line["high"].push_back(rounded(at(band.high)));
    }
  }
}

// Returns the lines of the charts: {name, runs, metrics}.
Json lines_json(std::span<const RunRecords> runs, std::span<const RunGroup> groups) {
  std::deque<RunRecords> means;
  const auto records_of = [&](const RunGroup& group) -> const RunRecords& {
    return group.size() == 1 ? runs[group[0]] : means.emplace_back(mean_of(runs, group));
  };
  const RunRecords& first = records_of(groups[0]);
  Json lines = Json::array();
  for (const RunGroup& group : groups) {
    const RunRecords& line = &group == &groups[0] ? first : records_of(group);
    Json metrics = metrics_json(line, first);
    if (group.size() > 1) add_bands(metrics, runs, group, line);
    lines.push_back({{"name", group_name(runs, group)}, {"runs", group}, {"metrics", std::move(metrics)}});
  }
  return lines;
}

// Returns the last value, the mean of the last values, the minimum with its step, and the median of the second half, in
// which the speed of the run has settled.
Json summary_json(const RunRecords& run) {
  Json summary = Json::object();
  for (const char* key : kSummary) {
    const Series& series = run.metric(key);
    if (series.empty()) continue;
    const auto least = std::ranges::min_element(series, {}, &Point::y);
    const auto middle = series.begin() + static_cast<std::ptrdiff_t>(series.size() / 2);
    summary[key] = {{"last", series.back().y},
                    {"tail_mean", tail_mean(series)},
                    {"least", {{"x", least->x}, {"y", least->y}}},
                    {"median", median_of(Series(middle, series.end()))}};
  }
  return summary;
}

Json run_json(const RunRecords& run) {
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
          {"summary", summary_json(run)},
          {"counts", counts},
          {"events", events},
          {"starts", run.starts},
          {"config", run.config}};
}

}  // namespace

std::string html_page(const char* title, std::initializer_list<const char*> scripts, const nlohmann::json& document) {
  std::string script;
  for (const char* name : scripts) script += embedded(name);
  std::string page;
  std::string_view rest = embedded("template");
  const auto put = [&](std::string_view place, std::string_view text) {
    const size_t at = rest.find(place);
    CHECK(at != std::string_view::npos, "template.html has no {} in its order", place);
    page.append(rest.substr(0, at)).append(text);
    rest.remove_prefix(at + place.size());
  };
  put("{{title}}", title);
  put("{{style}}", embedded("style"));
  put("{{document}}", text_of(document));
  put("{{script}}", script);
  return page.append(rest);
}

std::string memory_page(const Plan& plan, const StepTimeline& timeline) {
  return html_page("Memory - octavo plan", {"elements", "memory"}, memory_document(plan, timeline));
}

Json report_document(std::span<const RunRecords> runs, std::span<const RunGroup> groups, int64_t reload_s) {
  Json document{{"charts", Json::array()}, {"runs", Json::array()}, {"reload_s", reload_s}};
  for (const MetricSpec& metric : charts()) document["charts"].push_back(chart_json(metric));
  for (const RunRecords& run : runs) document["runs"].push_back(run_json(run));
  document["lines"] = lines_json(runs, groups);
  return document;
}

std::string report_page(std::span<const RunRecords> runs, std::span<const RunGroup> groups, int64_t reload_s) {
  return html_page("Runs - octavo report", {"elements", "charts", "report"}, report_document(runs, groups, reload_s));
}

}  // namespace octavo

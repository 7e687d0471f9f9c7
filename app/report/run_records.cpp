#include "app/report/run_records.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "app/records/metrics_course.h"
#include "app/report/config_values.h"
#include "core/error.h"
#include "core/files/input_file.h"
#include "core/files/json_input.h"

namespace octavo {

namespace {

using nlohmann::json;

// A line of a run's metrics is a few hundred bytes, with FP8 statistics of a large model some hundred kilobytes.
constexpr size_t kMaxLineBytes = size_t{16} << 20;

void add(RunRecords& run, const std::string& name, double step, const json& value) {
  if (!value.is_number() || !std::isfinite(value.get<double>())) return;
  Series& series = run.metrics[name];
  const Point point{step, value.get<double>()};
  const auto place =
      std::lower_bound(series.begin(), series.end(), step, [](const Point& p, double x) { return p.x < x; });
  if (place != series.end() && place->x == step) {
    *place = point;
  } else {
    series.insert(place, point);
  }
}

// Of an array of tensors' statistics: the largest shares of each kind of tensor.
void add_fp8(RunRecords& run, double step, const json& tensors) {
  std::map<std::string, double> most;
  for (const json& tensor : tensors) {
    if (!tensor.is_object() || !tensor.contains("tensor") || !tensor["tensor"].is_string()) continue;
    for (const char* share : {"saturated", "flushed"}) {
      const auto found = tensor.find(share);
      if (found == tensor.end() || !found->is_number()) continue;
      double& largest = most[fmt::format("fp8_{}/{}", share, tensor["tensor"].get<std::string>())];
      largest = std::max(largest, found->get<double>());
    }
  }
  for (const auto& [name, share] : most) add(run, name, step, share);
}

void add_line(RunRecords& run, double step, const json& line) {
  for (const auto& [key, value] : line.items()) {
    if (key == "step" || key == "nonfinite") continue;
    if (key == "fp8" && value.is_array()) add_fp8(run, step, value);
    if (value.is_object()) {
      for (const auto& [name, number] : value.items()) add(run, fmt::format("{}/{}", key, name), step, number);
    } else {
      add(run, key, step, value);
    }
  }
}

// What was written of `step` and the steps behind it counts no more.
void forget_from(RunRecords& run, double step) {
  for (auto& [name, series] : run.metrics) {
    while (!series.empty() && series.back().x >= step) series.pop_back();
  }
}

void read_metrics(RunRecords& run) {
  const std::string path = run.dir + "/metrics.jsonl";
  CHECK_INPUT(is_directory_at(run.dir) && path_exists(path),
              "{} is no folder of a run: it has no metrics.jsonl, expected a logging.dir of octavo train", run.dir);
  InputFile file(path);
  MetricsCourse course;
  for (std::string text; file.read_line(text);) {
    if (text.size() > kMaxLineBytes) continue;
    const json line = json::parse(text, nullptr, false);  // discarded: a line cut short by a crash
    const auto step = line.is_object() ? line.find("step") : line.end();
    if (step == line.end() || !step->is_number_integer()) continue;
    const auto number = step->get<int64_t>();
    if (course.parts(number, line)) forget_from(run, static_cast<double>(number));
    add_line(run, static_cast<double>(number), line);
  }
  run.last_step = course.last_step();
  std::erase_if(run.metrics, [](const auto& metric) { return metric.second.empty(); });
}

}  // namespace

const Series& RunRecords::metric(const std::string& key) const {
  const auto found = metrics.find(key);
  return found != metrics.end() ? found->second : none;
}

RunRecords read_run(const std::string& dir) {
  RunRecords run;
  run.dir = dir;
  const std::filesystem::path path = std::filesystem::path(dir).lexically_normal();
  run.name = (path.has_filename() ? path : path.parent_path()).filename().string();
  read_metrics(run);
  run.starts = read_starts(dir);
  std::optional<std::vector<RunEvent>> events = read_events(dir);
  run.has_events = events.has_value();
  run.events = std::move(events).value_or(std::vector{RunEvent{
      .text = fmt::format("{} is missing, as in runs of earlier versions: log.txt tells what happened", kEventsName)}});
  run.config = read_config_values(dir);
  return run;
}

}  // namespace octavo

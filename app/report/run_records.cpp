#include "app/report/run_records.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <ranges>
#include <span>
#include <utility>

#include "app/config/config_node.h"
#include "app/records/goodput.h"
#include "app/records/metrics_writer.h"
#include "core/error.h"
#include "core/files/input_file.h"
#include "core/files/json_input.h"
#include "core/format.h"
#include "core/printable.h"

namespace octavo {

namespace {

using nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// Limit of a line's length. A line of metrics usually has a few hundred bytes, and some hundred kilobytes with the FP8
// statistics of a large model.
constexpr size_t kMaxLineBytes = size_t{16} << 20;

void add(RunRecords& run, const std::string& name, double step, const json& value) {
  if (!value.is_number() || !std::isfinite(value.get<double>())) return;
  Series& series = run.metrics[name];
  const Point point{step, value.get<double>()};
  const auto place = std::ranges::lower_bound(series, step, {}, &Point::x);
  if (place != series.end() && place->x == step) {
    *place = point;
  } else {
    series.insert(place, point);
  }
}

// Adds the largest shares of each kind of tensor, given an array of statistics by tensor.
void add_fp8(RunRecords& run, double step, const json& tensors) {
  std::map<std::string, double> most;
  for (const json& tensor : tensors) {
    const std::optional<std::string> name = find_value<std::string>(tensor, "/tensor");
    for (const char* share : {"saturated", "flushed"}) {
      const std::optional<double> found = find_value<double>(tensor, fmt::format("/{}", share));
      if (!name || !found) continue;
      double& largest = most[fmt::format("fp8_{}/{}", share, *name)];
      largest = std::max(largest, *found);
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

void read_metrics(RunRecords& run) {
  const std::string path = run.dir + "/metrics.jsonl";
  CHECK_INPUT(is_directory_at(run.dir) && path_exists(path),
              "{} is not the folder of a run: it has no metrics.jsonl, expected a logging.dir of octavo train",
              run.dir);
  InputFile file(path);
  MetricsHistory history;
  for (std::string text; file.read_line(text);) {
    if (text.size() > kMaxLineBytes) continue;
    const std::optional<MetricsLine> line = parse_metrics_line(text);
    if (!line) continue;
    const auto step = static_cast<double>(line->step);
    if (history.diverges(*line)) {  // The values of this step and of later steps no longer count.
      for (auto& [name, series] : run.metrics) std::erase_if(series, [&](const Point& p) { return p.x >= step; });
    }
    add_line(run, step, line->values);
    if (line->step == history.last_step()) run.last_line = text;
  }
  run.last_step = history.last_step();
  std::erase_if(run.metrics, [](const auto& metric) { return metric.second.empty(); });
}

// Returns a value of a line in starts.jsonl as text. The items of a list are separated by spaces.
std::string text_at(const json& line, const char* key) {
  const auto found = line.find(key);
  if (found == line.end()) return "";
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) return found->dump();
  const auto text = [](const json& word) { return word.is_string() ? word.get<std::string>() : word.dump(); };
  return fmt::format("{}", fmt::join(*found | std::views::transform(text), " "));
}

// Returns the events in events.jsonl. Empty if the file does not exist.
std::vector<RunEvent> read_events(const std::string& dir) {
  const std::string path = fmt::format("{}/{}", dir, kEventsName);
  std::vector<RunEvent> events;
  if (!path_exists(path)) return events;
  InputFile file(path);
  for (std::string line; file.read_line(line);) {
    if (std::optional<RunEvent> event = parse_event(line)) events.push_back(std::move(*event));
  }
  return events;
}

// Reads starts.jsonl. Lines that are not JSON are skipped.
std::vector<json> read_starts(const std::string& dir) {
  const std::string path = dir + "/starts.jsonl";
  std::vector<json> starts;
  if (!path_exists(path)) return starts;
  InputFile file(path);
  for (std::string line; file.read_line(line);) {
    const json start = json::parse(line, nullptr, false);
    if (!start.is_object()) continue;
    json& texts = starts.emplace_back();
    for (const char* key : {"time", "runs_on", "hosts", "command"}) texts[key] = text_at(start, key);
    texts["version"] = fmt::format("{} ({})", text_at(start, "version"), text_at(start, "commit"));
  }
  return starts;
}

std::string in_one_line(const ConfigNode& node) {
  if (node.kind == ConfigNode::Kind::kNull) return "null";
  if (node.kind == ConfigNode::Kind::kScalar) return node.text.empty() ? "\"\"" : node.text;
  const bool is_map = node.kind == ConfigNode::Kind::kMap;
  std::vector<std::string> items;
  for (size_t i = 0; i < node.children.size(); ++i) {
    items.push_back((is_map ? node.keys[i] + ": " : "") + in_one_line(node.children[i]));
  }
  return fmt::format("{}{}{}", is_map ? '{' : '[', fmt::join(items, ", "), is_map ? '}' : ']');
}

// Adds the values of a config by full key name. Lists and the maps in them are written on one line.
void add_values(const ConfigNode& map, const std::string& prefix, std::map<std::string, std::string>& values) {
  for (size_t i = 0; i < map.children.size(); ++i) {
    const std::string key = prefix + map.keys[i];
    if (map.children[i].kind == ConfigNode::Kind::kMap) {
      add_values(map.children[i], key + ".", values);
    } else {
      values[key] = in_one_line(map.children[i]);
    }
  }
}

constexpr double kLossWindow = 20;  // Number of logged steps on each side that the smoothed loss averages over.
constexpr const char* kUnknown = "-";

std::string row(const char* name, const std::string& text) { return fmt::format("{:<16}{}\n", name, text); }

std::string number(double value) { return with_thousands_separators(std::llround(value)); }

std::string steps_of(const RunRecords& run) {
  const int64_t total = run.total_steps();
  const std::string done = with_thousands_separators(run.last_step);
  return total > 0 ? fmt::format("{} of {}", done, with_thousands_separators(total)) : done;
}

// Returns the loss that a report shows too.
std::string loss_of(const Series& loss) {
  if (loss.empty()) return kUnknown;
  const size_t points = tail_points(loss);
  return fmt::format("{:.4f} at step {}{}", tail_mean(loss), number(loss.back().x),
                     points == 1 ? "" : fmt::format(", mean of the last {} logged steps", points));
}

std::string validation_of(const Series& validation, const Series& smoothed) {
  if (validation.empty()) return kUnknown;
  const Point last = validation.back();
  const auto after = std::ranges::upper_bound(smoothed, last.x, {}, &Point::x);
  std::string text = fmt::format("{:.4f} at step {}", last.y, number(last.x));
  if (after != smoothed.begin()) text += fmt::format(", where the smoothed loss is {:.4f}", std::prev(after)->y);
  return text;
}

std::string goodput_of(const nlohmann::ordered_json& goodput) {
  const auto value = [&](const char* place) { return find_value<double>(goodput, place).value_or(std::nan("")); };
  if (!std::isfinite(value("/goodput"))) return kUnknown;
  const double restarts = value("/restarts");
  std::string text = fmt::format("{:.1f}% of {}", 100 * value("/goodput"), format_duration(value("/wall_s")));
  if (restarts >= 1) text += fmt::format(", {} restart{}", number(restarts), restarts == 1 ? "" : "s");
  return text;
}

using Warnings = std::vector<const RunEvent*>;

// Returns the warnings in the events of a run, in the order of their times.
Warnings warnings_of(const RunRecords& run) {
  Warnings warnings;
  for (const RunEvent& event : run.events) {
    if (event.kind == EventKind::kWarning) warnings.push_back(&event);
  }
  return warnings;
}

// Returns the newest warnings, at most five.
std::span<const RunEvent* const> newest(const Warnings& warnings) {
  return std::span(warnings).last(std::min<size_t>(warnings.size(), 5));
}

std::string describe(const Warnings& warnings) {
  const auto shown = newest(warnings);
  std::string count = with_thousands_separators(std::ssize(warnings));
  if (shown.size() < warnings.size()) count += fmt::format(", the last {} of them:", shown.size());
  std::string text = row("warnings", count);
  for (const RunEvent* event : shown) text += fmt::format("  {}  {}\n", printable(event->time), printable(event->text));
  return text;
}

}  // namespace

const Series& RunRecords::metric(const std::string& key) const {
  static const Series kNone;
  const auto found = metrics.find(key);
  return found != metrics.end() ? found->second : kNone;
}

int64_t RunRecords::total_steps() const {
  const auto found = config.find("training.steps");
  return found != config.end() ? std::strtoll(found->second.c_str(), nullptr, 10) : 0;
}

RunRecords read_run(const std::string& dir) {
  RunRecords run;
  run.dir = dir;
  const std::filesystem::path path = std::filesystem::path(dir).lexically_normal();
  run.name = (path.has_filename() ? path : path.parent_path()).filename().string();
  read_metrics(run);
  run.starts = read_starts(dir);
  run.events = read_events(dir);
  const std::string config = dir + "/config.yaml";
  if (path_exists(config)) add_values(node_from_file(config), "", run.config);
  return run;
}

std::vector<std::string> run_folders(const std::string& dir) {
  const auto is_run = [](const std::string& path) {
    std::error_code error;  // A folder that cannot be searched is no run.
    return std::filesystem::exists(path + "/metrics.jsonl", error);
  };
  if (!is_directory_at(dir) || is_run(dir)) return {dir};
  std::vector<std::string> folders;
  std::error_code error;
  constexpr auto kOptions = std::filesystem::directory_options::skip_permission_denied;
  std::filesystem::recursive_directory_iterator entry(dir, kOptions, error);
  for (; !error && entry != std::filesystem::end(entry); entry.increment(error)) {
    if (!is_run(entry->path().string())) continue;
    folders.push_back(entry->path().string());
    entry.disable_recursion_pending();
  }
  CHECK_INPUT(!error, "{}: cannot be read: {}", dir, error.message());
  CHECK_INPUT(
      !folders.empty(),
      "{} is not the folder of a run, and contains none: it and the folders below have no metrics.jsonl, expected a "
      "logging.dir of octavo train",
      dir);
  std::ranges::sort(folders);
  return folders;
}

OrderedJson describe_run(const RunRecords& run, const OrderedJson& goodput) {
  OrderedJson description{{"run", run.dir}};
  if (run.total_steps() > 0) description["total_steps"] = run.total_steps();
  const OrderedJson numbers = OrderedJson::parse(run.last_line);
  for (const auto& [key, value] : numbers.items()) {
    if (value.is_number()) description[key] = value;
  }
  if (const Series& loss = run.metric("loss"); !loss.empty()) description["last_loss"] = tail_mean(loss);
  const Warnings warnings = warnings_of(run);
  description["warnings"] = warnings.size();
  for (const RunEvent* event : newest(warnings))
    description["last_warnings"].push_back({{"time", event->time}, {"text", event->text}});
  if (!goodput.is_null()) description["goodput"] = goodput;
  return description;
}

OrderedJson read_goodput(const std::string& dir) {
  const std::string path = dir + "/" + Goodput::kFileName;
  return path_exists(path) ? parse_ordered_json(read_input_file(path), path) : OrderedJson();
}

std::string run_table(const RunRecords& run, const nlohmann::ordered_json& goodput) {
  const Series smoothed = smooth(run.metric("loss"), kLossWindow);
  const Series& tokens = run.metric("tokens");
  return row("run", printable(run.dir)) + row("steps", steps_of(run)) +
         row("tokens", tokens.empty() ? kUnknown : number(tokens.back().y)) + row("loss", loss_of(run.metric("loss"))) +
         row("validation loss", validation_of(run.metric("validation_loss"), smoothed)) +
         row("goodput", goodput_of(goodput)) + describe(warnings_of(run));
}

}  // namespace octavo

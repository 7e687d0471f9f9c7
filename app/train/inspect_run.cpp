#include "app/train/inspect_run.h"

#include <nlohmann/json.hpp>

#include "app/records/goodput.h"
#include "app/records/metrics_course.h"
#include "core/files/input_file.h"
#include "core/files/json_input.h"

namespace octavo {

namespace {

using OrderedJson = nlohmann::ordered_json;

std::string metrics_path(const std::string& dir) { return dir + "/metrics.jsonl"; }

}  // namespace

bool is_run_folder(const std::string& dir) { return path_exists(metrics_path(dir)); }

OrderedJson inspect_run(const std::string& dir) {
  OrderedJson description{{"run", dir}};
  InputFile metrics(metrics_path(dir));
  MetricsCourse course;
  std::string last = "{}";
  for (std::string line; metrics.read_line(line);) {
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);  // discarded: a line cut short by a crash
    const auto step = json.is_object() ? json.find("step") : json.end();
    if (step == json.end() || !step->is_number_integer()) continue;
    course.parts(step->get<int64_t>(), json);
    if (step->get<int64_t>() == course.last_step()) last = line;
  }
  const OrderedJson numbers = OrderedJson::parse(last);
  for (const auto& [key, value] : numbers.items()) {
    if (value.is_number()) description[key] = value;
  }
  const std::string goodput = dir + "/" + Goodput::kFileName;
  if (path_exists(goodput)) description["goodput"] = parse_ordered_json(read_input_file(goodput), goodput);
  return description;
}

}  // namespace octavo

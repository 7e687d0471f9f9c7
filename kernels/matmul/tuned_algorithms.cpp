#include "kernels/matmul/tuned_algorithms.h"

#include "core/error.h"
#include "core/files/json_input.h"

namespace octavo {

void TunedAlgorithms::add(std::string_view text, const std::string& on) {
  const nlohmann::json json = parse_json(text, "the algorithms chosen before");
  const auto is_text = [](const nlohmann::json& value) { return value.is_string(); };
  const bool valid = json.is_object() && json.contains("on") && is_text(json["on"]) && json.contains("algorithms") &&
                     json["algorithms"].is_object() && std::ranges::all_of(json["algorithms"], is_text);
  CHECK_INPUT(valid, "the algorithms chosen before: expected {{\"on\": text, \"algorithms\": {{text: text, ...}}}}");
  if (json["on"] != on) return;
  for (const auto& [problem, algorithm] : json["algorithms"].items()) algorithms_[problem] = algorithm;
}

std::string TunedAlgorithms::text(const std::string& on) const {
  return nlohmann::json{{"on", on}, {"algorithms", algorithms_}}.dump(1) + "\n";
}

const std::string* TunedAlgorithms::find(const std::string& problem) const {
  const auto found = algorithms_.find(problem);
  return found == algorithms_.end() ? nullptr : &found->second;
}

void TunedAlgorithms::keep(const std::string& problem, const std::string& algorithm) {
  algorithms_[problem] = algorithm;
  ++timed_;
}

}  // namespace octavo

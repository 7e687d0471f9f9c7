#include "app/report/run_events.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/files/input_file.h"

namespace octavo {

namespace {

std::string text_at(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end()) return "";
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) return found->dump();
  std::string words;
  for (const nlohmann::json& word : *found) {
    words += (words.empty() ? "" : " ") + (word.is_string() ? word.get<std::string>() : word.dump());
  }
  return words;
}

}  // namespace

std::optional<std::vector<RunEvent>> read_events(const std::string& dir) {
  const std::string path = fmt::format("{}/{}", dir, kEventsName);
  if (!path_exists(path)) return std::nullopt;
  std::vector<RunEvent> events;
  InputFile file(path);
  for (std::string line; file.read_line(line);) {
    if (std::optional<RunEvent> event = parse_event(line)) events.push_back(std::move(*event));
  }
  return events;
}

std::vector<RunStart> read_starts(const std::string& dir) {
  const std::string path = dir + "/starts.jsonl";
  std::vector<RunStart> starts;
  if (!path_exists(path)) return starts;
  InputFile file(path);
  for (std::string line; file.read_line(line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object()) continue;
    starts.push_back({.time = text_at(json, "time"),
                      .command = text_at(json, "command"),
                      .version = fmt::format("{} ({})", text_at(json, "version"), text_at(json, "commit")),
                      .hosts = text_at(json, "hosts"),
                      .runs_on = text_at(json, "runs_on")});
  }
  return starts;
}

}  // namespace octavo

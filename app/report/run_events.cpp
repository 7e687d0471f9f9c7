#include "app/report/run_events.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"
#include "core/files/input_file.h"

namespace octavo {

namespace {

constexpr size_t kTimeBytes = 23;  // "2026-11-22 21:34:41.120", and two spaces behind it
constexpr size_t kMaxTextBytes = 2000;
constexpr std::string_view kWarningMark = "warning: ";  // as app/train/run_folder.h writes it

// What tells a line: its first that is found in it, or at its beginning.
struct EventPattern {
  const char* text;
  EventKind kind;
  bool begins = false;
};
constexpr EventPattern kPatterns[] = {
    {"resuming ", EventKind::kRestart, true},
    {"saved ", EventKind::kCheckpoint, true},
    {"back to ", EventKind::kSetBack, true},
    {"it changes nothing", EventKind::kSkip},
    {"standard deviations above", EventKind::kWarning},
    {"is not finite", EventKind::kWarning},
    {"differ", EventKind::kWarning},
    {"is lost", EventKind::kWarning},
    {"cannot be", EventKind::kWarning},
    {" times as long as those before", EventKind::kWarning},
    {"saturate", EventKind::kWarning},
    {"max_epochs", EventKind::kWarning},
    {"data.skip: ", EventKind::kNote, true},
    {"otherwise than when it was saved", EventKind::kNote, true},
    {"learning rate: ", EventKind::kNote, true},
    {" begins with step ", EventKind::kNote},
    {"from step ", EventKind::kNote, true},
    {"a trace of step ", EventKind::kNote, true},
    {"saving a checkpoint at the end of step ", EventKind::kNote},
    {"goodput ", EventKind::kNote, true},
};

// "step 100/2000  loss ...": numbers that metrics.jsonl has.
bool is_step_line(std::string_view text) {
  if (!text.starts_with("step ")) return false;
  const size_t end = text.find_first_not_of("0123456789", 5);
  return end != std::string_view::npos && end > 5 && text[end] == '/';
}

std::optional<int64_t> number_behind(std::string_view text, std::string_view word) {
  const size_t found = text.find(word);
  if (found == std::string_view::npos) return std::nullopt;
  const std::string_view digits = text.substr(found + word.size());
  int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

// Of "step 12", "after step 12" and ".../step_00000012".
std::optional<int64_t> step_of(std::string_view text) {
  for (const char* word : {"after step ", "step ", "steps ", "step_"}) {
    if (const std::optional<int64_t> step = number_behind(text, word)) return step;
  }
  return std::nullopt;
}

// Nothing for a line that tells of no event. A marked line is a warning unless its text is of a more specific kind.
std::optional<EventKind> kind_of(std::string_view text, bool is_warning) {
  if (is_step_line(text)) return std::nullopt;
  for (const auto& [pattern, kind, begins] : kPatterns) {
    const size_t found = text.find(pattern);
    if (found == std::string_view::npos || (begins && found != 0)) continue;
    return is_warning && kind == EventKind::kNote ? EventKind::kWarning : kind;
  }
  return is_warning ? std::optional(EventKind::kWarning) : std::nullopt;
}

std::optional<RunEvent> event_of(std::string_view line) {
  if (line.size() < kTimeBytes + 2) return std::nullopt;
  std::string_view text = line.substr(kTimeBytes + 2);
  const bool is_warning = text.starts_with(kWarningMark);
  if (is_warning) text.remove_prefix(kWarningMark.size());
  const std::optional<EventKind> kind = kind_of(text, is_warning);
  if (!kind) return std::nullopt;
  return RunEvent{.kind = *kind,
                  .step = step_of(text),
                  .time = std::string(line.substr(0, kTimeBytes)),
                  .text = std::string(text.substr(0, kMaxTextBytes))};
}

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

const char* event_kind_name(EventKind kind) {
  switch (kind) {
    case EventKind::kRestart:
      return "restart";
    case EventKind::kCheckpoint:
      return "checkpoint";
    case EventKind::kSkip:
      return "skipped step";
    case EventKind::kSetBack:
      return "set back";
    case EventKind::kWarning:
      return "warning";
    case EventKind::kNote:
      break;
  }
  return "note";
}

std::vector<RunEvent> read_events(const std::string& dir) {
  const std::string path = dir + "/log.txt";
  std::vector<RunEvent> events;
  if (!path_exists(path)) return events;
  InputFile file(path);
  for (std::string line; file.read_line(line);) {
    if (std::optional<RunEvent> event = event_of(line)) events.push_back(std::move(*event));
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

#include "app/process/events.h"

#include <fmt/chrono.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/files/json_input.h"
#include "core/printable.h"

namespace octavo {

namespace {

constexpr const char* kEventNames[] = {"restart", "checkpoint", "skip", "rollback", "warning", "note", "fallback"};

constexpr size_t kMaxTextBytes = 2000;  // Maximum length of the text that parse_event accepts.

std::optional<EventKind> kind_of(std::string_view name) {
  for (size_t i = 0; i < std::size(kEventNames); ++i) {
    if (name == kEventNames[i]) return static_cast<EventKind>(i);
  }
  return std::nullopt;
}

}  // namespace

bool is_warning(EventKind kind) {
  return kind == EventKind::kSkip || kind == EventKind::kRollback || kind == EventKind::kWarning ||
         kind == EventKind::kFallback;
}

const char* event_kind_name(EventKind kind) { return kEventNames[static_cast<size_t>(kind)]; }

// A message of spdlog has a source location, which Octavo does not use otherwise. The function name in it carries the
// kind of the event, and the line number carries the step.
void log_event(EventKind kind, int64_t step, const std::string& text) {
  const auto level = is_warning(kind) ? spdlog::level::warn : spdlog::level::info;
  const spdlog::source_loc tag("", static_cast<int>(step), event_kind_name(kind));
  spdlog::default_logger_raw()->log(tag, level, printable(text, 4 * text.size()));
}

std::optional<RunEvent> event_of(const spdlog::details::log_msg& message) {
  RunEvent event{.kind = EventKind::kWarning};
  if (message.source.funcname != nullptr) {
    event.kind = kind_of(message.source.funcname).value_or(EventKind::kNote);
    if (message.source.line > 0) event.step = message.source.line;
  } else if (message.level < spdlog::level::warn) {
    return std::nullopt;
  }
  const auto time = std::chrono::floor<std::chrono::milliseconds>(message.time);
  const auto second = std::chrono::floor<std::chrono::seconds>(time);
  event.time = fmt::format("{:%FT%T}.{:03}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(second)),
                           (time - second).count());
  event.text = std::string(message.payload.data(), message.payload.size());
  return event;
}

std::string event_json(const RunEvent& event) {
  nlohmann::ordered_json json{{"time", event.time}, {"event", event_kind_name(event.kind)}};
  if (event.step) json["step"] = *event.step;
  json["text"] = event.text;
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<RunEvent> parse_event(std::string_view line) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  const auto text_at = [&](const char* place) { return find_value<std::string>(json, place).value_or(""); };
  const std::optional<EventKind> kind = kind_of(text_at("/event"));
  if (!kind) return std::nullopt;
  return RunEvent{.kind = *kind,
                  .step = find_value<int64_t>(json, "/step"),
                  .time = text_at("/time"),
                  .text = text_at("/text").substr(0, kMaxTextBytes)};
}

}  // namespace octavo

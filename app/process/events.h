// Events are what happens to a run apart from the metrics of its steps. An event is one line of the log, for people,
// and one line of events.jsonl in the run's folder, for programs:
//   {"time":"2026-11-22T20:34:41.120Z","event":"checkpoint","step":500,"text":"saved runs/a/checkpoints/step_00000500:
//   ..."}
// A warning (core/log.h) is also an event, without a step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/log.h"

namespace spdlog::details {
struct log_msg;
}

namespace octavo {

enum class EventKind : uint8_t {
  kRestart,     // The run resumed from the checkpoint of the step.
  kCheckpoint,  // The checkpoint of the step is complete on disk.
  kSkip,        // The step was skipped and changed no weights.
  kRollback,    // The run rolled back to the state after the step.
  kWarning,     // A warning, or the error that ended the run before its first step.
  kNote,        // Any other fact that explains the metrics.
  kFallback,    // The run rolled back to the state after the step and continues in bfloat16.
};

struct RunEvent {
  EventKind kind = EventKind::kNote;
  std::optional<int64_t> step = {};
  std::string time = {};  // Time in UTC.
  std::string text = {};
};

const char* event_kind_name(EventKind kind);
// Returns whether events of the kind are logged as warnings: skips, rollbacks, fallbacks and warnings.
bool is_warning(EventKind kind);

// Logs the line of an event. Step 0 means that the event belongs to no step.
void log_event(EventKind kind, int64_t step, const std::string& text);

template <typename... Args>
void log_event(EventKind kind, int64_t step, fmt::format_string<Args...> format, Args&&... args) {
  log_event(kind, step, fmt::format(format, std::forward<Args>(args)...));
}

inline constexpr const char* kEventsName = "events.jsonl";
// Formats an event as a line of events.jsonl, without the newline.
std::string event_json(const RunEvent& event);
// Parses a line of events.jsonl. Returns nothing if the line is not an event, for example because a crash cut it short.
std::optional<RunEvent> parse_event(std::string_view line);

// Returns the event that a log message describes, or nothing if the message describes none.
std::optional<RunEvent> event_of(const spdlog::details::log_msg& message);

}  // namespace octavo

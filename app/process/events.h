// Events: what happened to a run, besides the numbers of its steps. An event is a line of the log, for people, and a
// line of events.jsonl in the run's folder, for programs:
//   {"time":"2026-11-22T20:34:41.120Z","event":"checkpoint","step":500,"text":"saved runs/a/checkpoints/step_00000500:
//   ..."}
// A warning (core/log.h) is an event too, without a step.
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
  kRestart,     // The run resumed the checkpoint of the step.
  kCheckpoint,  // The checkpoint of the step is complete on disk.
  kSkip,        // The step changed nothing.
  kRollback,    // The run rolled back to the state after the step.
  kWarning,     // A warning, or the error that ended a start.
  kNote,        // Anything else that explains the metrics.
  kFallback,    // The run rolled back to the state after the step and continues in bfloat16.
};

struct RunEvent {
  EventKind kind = EventKind::kNote;
  std::optional<int64_t> step = {};
  std::string time = {};  // In UTC.
  std::string text = {};
};

const char* event_kind_name(EventKind kind);

// Logs a line that tells of an event: skips, rollbacks, fallbacks and warnings as a warning. Step 0: the event belongs
// to no step.
void log_event(EventKind kind, int64_t step, const std::string& text);

template <typename... Args>
void log_event(EventKind kind, int64_t step, fmt::format_string<Args...> format, Args&&... args) {
  log_event(kind, step, fmt::format(format, std::forward<Args>(args)...));
}

inline constexpr const char* kEventsName = "events.jsonl";
// Returns the line of events.jsonl, without the newline.
std::string event_json(const RunEvent& event);
// Returns nothing if the line is not an event, for example because a crash cut it short.
std::optional<RunEvent> parse_event(std::string_view line);

// Returns the event that a message of the log tells of. Nothing if it tells of none.
std::optional<RunEvent> event_of(const spdlog::details::log_msg& message);

}  // namespace octavo

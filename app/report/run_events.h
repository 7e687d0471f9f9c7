// What befell a run, out of its starts.jsonl and log.txt (app/train/run_folder.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace octavo {

enum class EventKind : uint8_t { kRestart, kCheckpoint, kSkip, kSetBack, kWarning, kNote };
const char* event_kind_name(EventKind kind);  // "restart", "checkpoint"...

struct RunEvent {
  EventKind kind = EventKind::kNote;
  std::optional<int64_t> step;  // where the line says one
  std::string time;             // "2026-11-22 21:34:41.120", as in the log
  std::string text;
};

struct RunStart {
  std::string time;
  std::string command;
  std::string version;
  std::string hosts;
  std::string runs_on;
};

// Lines of the log that tell of more than a step's numbers; empty without a log. A restart is a start that goes on from
// a checkpoint.
std::vector<RunEvent> read_events(const std::string& dir);

// A line a start; lines that are no JSON are passed over. Empty without the file.
std::vector<RunStart> read_starts(const std::string& dir);

}  // namespace octavo

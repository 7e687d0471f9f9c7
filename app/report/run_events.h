// What happened to a run, from starts.jsonl and events.jsonl in its folder (app/records/run_folder.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/process/events.h"

namespace octavo {

struct RunStart {
  std::string time;
  std::string command;
  std::string version;
  std::string hosts;
  std::string runs_on;
};

// Returns the events of events.jsonl. Nothing if there is no such file, as in the folders of earlier versions.
std::optional<std::vector<RunEvent>> read_events(const std::string& dir);

// A line a start; lines that are no JSON are passed over. Empty without the file.
std::vector<RunStart> read_starts(const std::string& dir);

}  // namespace octavo

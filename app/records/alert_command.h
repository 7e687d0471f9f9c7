// Runs logging.alert_command, a shell command, on rank 0's machine when a run warns, skips a step, rolls back, falls
// back to bfloat16 or ends with an error. The command gets these environment variables
//
//   OCTAVO_EVENT     kind of the event (app/process/events.h), or "error" for the error that ends the run
//   OCTAVO_MESSAGE   text of the event
//   OCTAVO_STEP      step of the event. 0 if it belongs to none.
//   OCTAVO_RUN       absolute path of the run's folder, which is also the working directory
//
// One command runs at a time. It starts kAlertDelay after its first event, but not before kAlertInterval has passed
// since the previous command ended. All events that arrive until it starts are joined in one alert. An error and the
// end of the run end the wait. Output goes to RUN/alert_command.log. A failure is logged once.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "app/config/config.h"
#include "app/process/events.h"
#include "app/run/shell_command.h"

namespace octavo {

inline constexpr const char* kAlertOutputName = "alert_command.log";
inline constexpr std::chrono::seconds kAlertDelay{1};
inline constexpr std::chrono::seconds kAlertInterval{60};
// Maximum number of events in an alert, not counting the error that ends the run.
inline constexpr size_t kMaxAlertEvents = 20;

struct Alert {
  std::string event = {};
  std::string message = {};
  int64_t step = 0;
};

// Returns whether an event causes an alert. Failures of the alert command cause none.
bool causes_alert(const RunEvent& event);

// Joins events to one alert with a line per event. Alert::event is "error" if `is_error`, or else the kind that all
// events share, or else "warning". Alert::step is that of the last event that has a step. If `left_out` is not 0, a
// last line tells that number of further events.
// Requires: `events` is not empty.
Alert join_events(std::span<const RunEvent> events, size_t left_out, bool is_error);

// Thread-safe.
class AlertCommand {
 public:
  explicit AlertCommand(const Config& config);
  // Calls end().
  ~AlertCommand();
  AlertCommand(const AlertCommand&) = delete;
  AlertCommand& operator=(const AlertCommand&) = delete;

  // Starts a thread that runs the commands. Events that were added before cause an alert, too.
  void start();
  // Adds an event, if it causes an alert. `is_error` marks the error that ends the run. Never waits for a command.
  void add(const RunEvent& event, bool is_error);
  // Waits until the commands for all added events have ended, but at most logging.alert_command_timeout_s. Then kills a
  // command that still runs. Events that are added later are ignored.
  void end();

 private:
  void run();
  void tell(const Alert& alert);
  bool is_late();

  const std::filesystem::path run_;  // logging.dir
  const double timeout_s_;           // logging.alert_command_timeout_s
  ShellCommand command_;             // Used by the thread only.
  bool has_failed_ = false;          // Whether a failure was logged. Used by the thread only.
  std::mutex mutex_;                 // Guards the members below.
  std::condition_variable changed_;
  std::vector<RunEvent> waiting_ = {};
  size_t left_out_ = 0;
  bool is_error_ = false;
  std::optional<std::chrono::steady_clock::time_point> ended_ = {};  // Time of end().
  std::thread thread_ = {};
};

}  // namespace octavo

#include "app/records/alert_command.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "app/process/startup_timer.h"
#include "core/printable.h"
#include "core/thread.h"

namespace octavo {

namespace fs = std::filesystem;

namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kKey = "logging.alert_command";
constexpr size_t kMaxTextBytes = 2000;  // The system limits a variable to 128 KiB.
constexpr std::chrono::milliseconds kPollInterval{50};

}  // namespace

bool causes_alert(const RunEvent& event) { return is_warning(event.kind) && !event.text.starts_with(kKey); }

Alert join_events(std::span<const RunEvent> events, size_t left_out, bool is_error) {
  Alert alert;
  const bool is_uniform = std::ranges::all_of(events, [&](const RunEvent& e) { return e.kind == events[0].kind; });
  alert.event = is_error ? "error" : event_kind_name(is_uniform ? events[0].kind : EventKind::kWarning);
  for (const RunEvent& event : events) {
    if (!alert.message.empty()) alert.message += "\n";
    alert.message += printable(event.text, kMaxTextBytes);
    alert.step = event.step.value_or(alert.step);
  }
  if (left_out > 0) alert.message += fmt::format("\n{} more in log.txt", left_out);
  return alert;
}

AlertCommand::AlertCommand(const Config& config)
    : run_(fs::absolute(config.logging.dir)),
      timeout_s_(config.logging.alert_command_timeout_s),
      command_(kKey, config.logging.alert_command, config.logging.alert_command_timeout_s, run_) {}

AlertCommand::~AlertCommand() { end(); }

void AlertCommand::start() {
  thread_ = start_thread("logging.alert_command", [this] { run(); });
}

void AlertCommand::add(const RunEvent& event, bool is_error) {
  if (!causes_alert(event)) return;
  const std::lock_guard lock(mutex_);
  if (waiting_.size() < kMaxAlertEvents || is_error) {
    waiting_.push_back(event);
  } else {
    ++left_out_;
  }
  is_error_ = is_error_ || is_error;
  changed_.notify_all();
}

void AlertCommand::end() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = ended_.value_or(Clock::now());
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void AlertCommand::run() {
  std::unique_lock lock(mutex_);
  for (Clock::time_point next = {};; next = Clock::now() + kAlertInterval) {
    changed_.wait(lock, [&] { return ended_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    changed_.wait_until(lock, std::max(next, Clock::now() + kAlertDelay), [&] { return ended_ || is_error_; });
    const std::vector<RunEvent> events = std::exchange(waiting_, {});
    const Alert alert = join_events(events, std::exchange(left_out_, 0), std::exchange(is_error_, false));
    lock.unlock();
    tell(alert);
    lock.lock();
  }
}

bool AlertCommand::is_late() {
  const std::lock_guard lock(mutex_);
  return ended_ && seconds_since(*ended_) > timeout_s_;
}

void AlertCommand::tell(const Alert& alert) {
  const fs::path output = run_ / kAlertOutputName;
  const std::string refusal = command_.start({"OCTAVO_EVENT=" + alert.event, "OCTAVO_MESSAGE=" + alert.message,
                                              fmt::format("OCTAVO_STEP={}", alert.step), "OCTAVO_RUN=" + run_.string()},
                                             output);
  std::optional<ShellCommand::End> end;
  if (!refusal.empty()) end = {.failed = true, .how = "cannot be started: " + refusal};
  while (!end) {
    std::this_thread::sleep_for(kPollInterval);
    end = command_.poll();
    if (end || !is_late()) continue;
    command_.kill();
    end = {.failed = true, .how = "was ended with the run"};
  }
  if (!end->failed || std::exchange(has_failed_, true)) return;
  log_warning("logging.alert_command {}; its output is in {}, and further failures are not reported", end->how,
              output.string());
}

}  // namespace octavo

#include "app/process/startup_timer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "app/process/launcher.h"

namespace octavo {

namespace {

// Returns the seconds since the machine booted.
double now() {
  timespec time{};
  clock_gettime(CLOCK_BOOTTIME, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Returns the time at which this process started, or `otherwise` if the system does not report it.
double process_start(double otherwise) {
  const double start = process_facts("self").start_ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
  return start > 0 && start < otherwise ? start : otherwise;
}

}  // namespace

double seconds_since_launch() {
  static const double start = process_start(now());
  return now() - start;
}

StartupTimer::StartupTimer(std::function<double()> clock) : clock_(std::move(clock)) { mark("program"); }

void StartupTimer::mark(const std::string& phase) {
  const double time = clock_();
  auto found = std::ranges::find_if(phases_, [&](const auto& one) { return one.first == phase; });
  if (found == phases_.end()) found = phases_.insert(phases_.end(), {phase, 0.0});
  found->second += time - last_;
  last_ = time;
}

std::string StartupTimer::report() const {
  std::string text = fmt::format("{:.1f} s:", last_);
  for (const auto& [phase, seconds] : phases_) {
    text += fmt::format("{} {} {:.1f}", &phase == &phases_.front().first ? "" : ",", phase, seconds);
  }
  return text;
}

}  // namespace octavo

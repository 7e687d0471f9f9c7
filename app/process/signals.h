// Signals that ask a training run to save and stop: SIGTERM, SIGINT, SIGUSR1, and the launcher's SIGCONT.
//
// SIGUSR1 is for launchers: mpirun passes it on to its ranks as it is. On SIGTERM, SIGINT and SIGHUP mpirun ends its
// ranks: it sends SIGCONT at once, SIGTERM odls_base_sigkill_timeout later (1 s unless told otherwise) and SIGKILL as
// long after that. So a SIGCONT that comes from the launcher counts as the request, unless this process was suspended
// (by Ctrl-Z, which mpirun passes on as SIGSTOP, as it passes on the SIGCONT of fg).
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <thread>

#include "parallel/ranks/process_group.h"

namespace octavo {

// Tells a thread that ticks at regular intervals whether its process was suspended between two ticks. A process cannot
// see its suspension except by a clock, and time in which the thread waited for a core does not count: a machine with
// other load may keep it waiting for seconds.
class SuspensionClock {
 public:
  // `waited_ms` is the time that the thread has spent waiting for a core so far, 0 where the system does not say.
  SuspensionClock(int64_t now_ms, int64_t waited_ms) : tick_ms_(now_ms), waited_ms_(waited_ms) {}
  // Returns true if the process was suspended until now or until less than a second ago.
  bool tick(int64_t now_ms, int64_t waited_ms);

 private:
  int64_t tick_ms_;
  int64_t waited_ms_;
  std::optional<int64_t> resumed_ms_;
};

// Returns the milliseconds that the calling thread has waited for a core since it began, or 0 if the system does not
// say.
int64_t waited_for_core_ms();

// Active from construction to destruction, one object at a time, on the main thread.
//
// A request that comes when another rank of this machine is gone ends the run with exit code 1: batch systems send
// SIGTERM to the ranks that are left, and a checkpoint needs all of them.
//
// Before the first step there is nothing to save: a request ends the process at once with exit code kExitStopped. Later
// it is acknowledged at once, by one line of the log from the rank that speaks, and requested() tells the training
// loop. After a request the others change nothing, as senders repeat them (timeout, batch systems and mpirun do); but
// Ctrl-C (SIGINT) ends the process at once: at any time after it where the terminal sends it, else more than a
// second after it.
//
// SIGHUP and SIGPIPE are ignored: a run goes on without its terminal and without a reader of its output. After
// destruction all of these are ignored: a process that is done is about to end by itself.
class StopSignals {
 public:
  explicit StopSignals(ProcessGroup& group);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Says that `step`, 1 or more, is running.
  void at_step(int64_t step) { step_.store(step, std::memory_order_relaxed); }
  // Returns whether this process got a request.
  bool requested() const;

 private:
  void listen(int pipe);  // Work of thread_.
  void acknowledge();

  ProcessGroup& group_;
  std::atomic<int64_t> step_{0};  // 0 means that no step has begun.
  std::atomic<bool> ending_{false};
  std::thread thread_;  // A handler must not log, and the main thread may be in a long step.
};

}  // namespace octavo

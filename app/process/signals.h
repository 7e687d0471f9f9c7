// Handles the signals that ask a training run to save and stop: SIGTERM, SIGINT and SIGUSR1.
//
// SIGUSR1 is meant for launchers, because mpirun forwards it to its ranks unchanged. On SIGTERM, SIGINT and SIGHUP
// mpirun ends its ranks: it sends SIGTERM after odls_base_sigkill_timeout (1 s by default), and SIGKILL after the same
// time again.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "parallel/ranks/process_group.h"

namespace octavo {

// Handles signals from construction to destruction. There is at most one object at a time, on the main thread.
//
// Before the first step there is nothing to save, and a request ends the process at once with exit code kExitStopped.
// After that, the root rank logs one line at once, and requested() tells the training loop to save and stop. Senders
// repeat their requests (timeout, batch systems and mpirun do), so further requests have no effect, with one exception:
// Ctrl-C (SIGINT) after the first request ends the process at once. If the SIGINT does not come from the terminal, it
// must follow the request by more than a second.
//
// A request ends the run with exit code 1 if another rank of this machine has already ended: batch systems send SIGTERM
// to the remaining ranks, and a checkpoint needs all ranks.
//
// SIGHUP and SIGPIPE are ignored, so a run continues without its terminal and without a reader of its output. After
// destruction all these signals are ignored, because the process is about to end.
class StopSignals {
 public:
  explicit StopSignals(ProcessGroup& group);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Records that `step`, 1 or more, is running.
  void at_step(int64_t step) { step_.store(step, std::memory_order_relaxed); }
  // Returns whether this process received a request to stop.
  bool requested() const;

 private:
  void listen(int pipe);  // Main function of thread_.
  void acknowledge();

  ProcessGroup& group_;
  std::atomic<int64_t> step_{0};  // Running step. 0 means that no step has begun.
  // Logs the request, because a signal handler must not log and the main thread may be inside a long step.
  std::thread thread_;
};

}  // namespace octavo

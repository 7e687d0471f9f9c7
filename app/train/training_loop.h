// The training loop. TrainingLoop::run() in training_loop.cpp shows the life of a step (app/log/step.h).
// app/train/decide.h decides what happens after a step, and app/train/run_actions.h performs it.
#pragma once

#include <cstdint>
#include <optional>

#include "app/process/signals.h"
#include "app/train/decide.h"
#include "app/train/run_actions.h"

namespace octavo {

enum class RunOutcome : uint8_t { kDone, kStopped };

class TrainingLoop {
 public:
  // `parts` must outlive the loop.
  explicit TrainingLoop(const RunParts& parts);

  // Runs steps until the last one, or until a signal to any rank stops the run. A collective.
  RunOutcome run(StopSignals& signals);

 private:
  // Does what is still to be done at the step whose state the run has loaded, at its start or for a rollback. Returns
  // that step.
  std::optional<int64_t> resume();
  // Returns the work that the config requests after a step.
  Due due_after(int64_t step, bool save_postponed) const;
  void queue_step(int64_t step, StopSignals& signals);
  // Returns whether an observer needs the step's result before the next step is queued.
  bool is_watched(int64_t step) const;
  void watch_while_idle(int64_t step);
  // Waits until at most one step is in flight, or until none is if `all` is true or an observer needs the result of
  // `step`, the last one that was queued. Reports each finished step except the newest, which it returns. If too many
  // steps in a row were skipped, waits for all steps, because those in flight may not be skipped.
  std::optional<Step> finish_steps(int64_t step, bool all);
  // Waits for the oldest step in flight and judges its result.
  Step pop_step();
  void judge(Step& step);
  // Combines the requests of all ranks. Called at least once per step. A collective.
  Requests agree_on_requests(const StopSignals& signals);
  Facts collect(const Due& due, const Requests& requests, bool save_postponed);
  // Compares the replicas if the facts lead to a save, and updates the facts with the result.
  void compare_replicas(Facts& facts, int64_t step);
  // Adds the validation loss to the step, unless a signal stops the run during the validation.
  void validate(Step& step, const StopSignals& signals);
  // Logs the step if it is due to be logged, is unusual, or if `always` is true.
  void report(const Step& step, bool always);
  bool is_first(int64_t step) const { return step == parts_.run.start().step + 1; }

  const RunParts parts_;
  RunActions actions_;
  const int64_t steps_in_flight_;  // Number of steps that may be in flight while the host queues the next step.
  Requests requests_;              // Requests of this rank, except those by signals and the clock.
};

}  // namespace octavo

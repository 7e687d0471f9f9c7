// The training loop. TrainingLoop::run() in training_loop.cpp shows the life of a step (app/log/step.h).
// app/train/decide.h decides what happens after a step, and app/train/run_actions.h performs it.
#pragma once

#include <cstdint>
#include <optional>

#include "app/process/signals.h"
#include "app/train/decide.h"
#include "app/train/precision_comparison.h"
#include "app/train/run_actions.h"
#include "app/train/session.h"
#include "app/train/training.h"

namespace octavo {

class TrainingLoop {
 public:
  // Trains the job that `training` has loaded.
  // Requires: the arguments outlive the loop.
  TrainingLoop(Session& session, Training& training);

  // Runs steps until the job ends. A collective. Throws an ErrorOfAllRanks if too many steps in a row were skipped, or
  // if training.on_corruption requires it.
  Outcome run(StopSignals& signals);

 private:
  // Performs the work that remains at the step after which the job begins (due_after_loading).
  std::optional<Outcome> resume(const StopSignals& signals);
  // Returns the work that the config requests after a step.
  Due due_after(int64_t step) const;
  void queue_step(int64_t step, StopSignals& signals);
  // Returns whether an observer needs the step's result before the next step is queued.
  bool is_watched(int64_t step) const;
  void watch_while_idle(int64_t step);
  // Waits until at most steps_in_flight_ steps are in flight. Waits for all steps if `all` is true, if an observer
  // needs the result of `step` (the last queued step), or if too many steps in a row were skipped, because a step in
  // flight may end the row. Reports each finished step except the newest, which it returns.
  std::optional<Step> finish_steps(int64_t step, bool all);
  // Waits for the oldest step in flight and judges its result.
  Step pop_step();
  void judge(Step& step);
  // Combines the requests of all ranks. Called at least once per step. A collective.
  Requests agree_on_requests(const StopSignals& signals);
  Facts collect(const Due& due, const Requests& requests);
  // Compares the replicas if the facts lead to a save, and updates the facts with the result.
  void compare_replicas(Facts& facts, int64_t step);
  // Adds the validation loss to the step, unless a signal stops the run during the validation.
  void validate(Step& step, const StopSignals& signals);
  // Logs the step if it is due to be logged, is unusual, or if `always` is true.
  void report(const Step& step, bool always);
  bool is_first(int64_t step) const { return step == training_.start().step + 1; }

  Session& session_;
  Training& training_;
  const StageConfig& config_;
  Goodput& goodput_;
  StepGuard& step_guard_;
  PrecisionComparison comparison_;  // Compares FP8 with bfloat16, as the config requests by precision.guard.
  RunActions actions_;
  const int64_t steps_in_flight_;  // Number of steps that may be in flight while the host queues the next step.
  Requests requests_;              // Requests of this rank, except those by signals and the clock.
};

}  // namespace octavo

// The training loop. TrainingLoop::run() in training_loop.cpp shows the life of a step (app/log/step.h). What follows a
// step is decided in app/train/decide.h and performed in app/train/run_actions.h.
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
  // The parts must outlive the loop.
  explicit TrainingLoop(const RunParts& parts);

  // Takes steps until the last one, or until a signal to any rank stops the run. A collective.
  RunOutcome run(StopSignals& signals);

 private:
  // Returns what the config asks for after a step that is about to be queued.
  Due due_after(int64_t step, bool owes_save) const;
  void queue_step(int64_t step, StopSignals& signals);
  // Whether an observer wants the step's result before the next step.
  bool is_watched(int64_t step) const;
  void watch_while_idle(int64_t step);
  // Waits until at most one step is in flight, or none if `all`. Reports each finished step but the newest, which it
  // returns. Waits for all steps when too many in a row were skipped: those in flight may have gone well.
  std::optional<Step> finish_steps(bool all);
  // Waits for the oldest step in flight and judges its result.
  Step pop_step();
  void judge(Step& step);
  // Combines the wishes of all ranks. Called at least once per step.
  Wishes agree(const StopSignals& signals);
  Facts collect(const Due& due, const Wishes& wishes, bool owes_save);
  // Compares the replicas if the facts lead to a save, and notes what that shows.
  void compare_replicas(Facts& facts, int64_t step);
  // Adds the validation loss to the step, unless a signal stops the run meanwhile.
  void validate(Step& step, const StopSignals& signals);
  // Logs a step if it is due to be logged, stands out, or must be logged `always`.
  void report(const Step& step, bool always);
  bool is_first(int64_t step) const { return step == parts_.run.start().step + 1; }

  const RunParts parts_;
  RunActions actions_;
  const int64_t steps_in_flight_;  // While the host queues the next step.
  Wishes wanted_;                  // Wishes of this rank, without those of the signals and the clock.
};

}  // namespace octavo

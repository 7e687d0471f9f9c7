// StepObserver: what watches the steps of a run. An observer is a file, and here a declaration and an entry of
// kObservers.
#pragma once

#include <cstdint>
#include <memory>

#include "app/config/config.h"
#include "app/log/step.h"
#include "app/process/runtime.h"
#include "app/run/training_state.h"

namespace octavo {

class DiskCheckpoints;

// Every method is called on all ranks in the same order, so it may be a collective.
class StepObserver {
 public:
  virtual ~StepObserver() = default;

  // Called before the step's batch is known.
  virtual void before_batch(int64_t /*step*/) {}
  // The batch is uploaded, and nothing else of the step is queued.
  virtual void before_step(const TrainingStep& /*step*/) {}
  // The step is queued, except for the copy of its results to the host.
  virtual void after_step(int64_t /*step*/) {}
  // Whether the loop waits for the step's result before it queues the next step. Equal on all ranks.
  virtual bool wants_result(int64_t /*step*/) const { return false; }
  // The step's result is on the host. Steps come in order. May add values to step.row, and may throw.
  virtual void on_result(Step& /*step*/) {}
  // The step, whose result was wanted, is done, and the device is idle.
  virtual void while_idle(int64_t /*step*/) {}
  // Whether the state after the step may be saved. Its result is known.
  virtual bool allows_save(int64_t /*step*/) { return true; }
  // The state was laid out again or set back, and no step is in flight.
  virtual void on_new_state() {}
};

// The parts of a run that observers see. All of them outlive the observers.
struct ObserverContext {
  const Config& config;
  Runtime& runtime;
  TrainingState& state;
  DiskCheckpoints& checkpoints;
};

std::unique_ptr<StepObserver> make_corruption_watch(const ObserverContext& context);
std::unique_ptr<StepObserver> make_fp8_watch(const ObserverContext& context);
std::unique_ptr<StepObserver> make_slow_rank_watch(const ObserverContext& context);
std::unique_ptr<StepObserver> make_trace_watch(const ObserverContext& context);

inline constexpr std::unique_ptr<StepObserver> (*kObservers[])(const ObserverContext&) = {
    make_corruption_watch, make_fp8_watch, make_slow_rank_watch, make_trace_watch};

}  // namespace octavo

// StepObserver is the interface of objects that watch the steps of a run. A new observer is a file, and a declaration
// and an entry of kObservers in this header.
#pragma once

#include <cstdint>
#include <memory>

#include "app/config/stages.h"
#include "app/log/step.h"
#include "app/process/runtime.h"
#include "app/run/training_state.h"

namespace octavo {

class DiskCheckpoints;

// All methods are called on all ranks in the same order, so they may run collectives.
class StepObserver {
 public:
  virtual ~StepObserver() = default;

  // Called before the step's batch is read.
  virtual void before_batch(int64_t /*step*/) {}
  // Called after the batch was uploaded and before any other work of the step is queued.
  virtual void before_step(const TrainingStep& /*step*/) {}
  // Called after the step was queued, before the copy of its results to the host is queued.
  virtual void after_step(int64_t /*step*/) {}
  // Returns whether the loop must wait for the step's result before it queues the next step. Also asked after each
  // on_result() of an earlier step. Equal on all ranks.
  virtual bool wants_result(int64_t /*step*/) const { return false; }
  // Called when the step's result is on the host, in the order of steps. May add values to step.row, and may throw.
  virtual void on_result(Step& /*step*/) {}
  // Called after a step for which wants_result() is true, while the device is idle.
  virtual void while_idle(int64_t /*step*/) {}
  // Returns whether the state after the step may be saved. Called after on_result().
  virtual bool allows_save(int64_t /*step*/) { return true; }
  // Called after the state was rolled back, or moved to another memory layout, while no step is in flight.
  virtual void on_new_state() {}
};

// The parts of a run that observers may use. All of them outlive the observers.
struct ObserverContext {
  const StageConfig& config;
  Runtime& runtime;
  TrainingState& state;
  DiskCheckpoints& checkpoints;
};

std::unique_ptr<StepObserver> make_corruption_watch(const ObserverContext& context);
std::unique_ptr<StepObserver> make_fp8_watch(const ObserverContext& context);
std::unique_ptr<StepObserver> make_nonfinite_watch(const ObserverContext& context);
std::unique_ptr<StepObserver> make_slow_rank_watch(const ObserverContext& context);
std::unique_ptr<StepObserver> make_trace_watch(const ObserverContext& context);

inline constexpr std::unique_ptr<StepObserver> (*kObservers[])(const ObserverContext&) = {
    make_corruption_watch, make_fp8_watch, make_nonfinite_watch, make_slow_rank_watch, make_trace_watch};

}  // namespace octavo

// TrainingRun owns the state of a run: model, optimizer, data, checkpoints and progress. It executes steps, saves the
// state, rolls back to a checkpoint, and switches the precision of the linears. The loop decides when
// (app/train/training_loop.h).
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "app/config/config.h"
#include "app/job/progress.h"
#include "app/log/data_report.h"
#include "app/log/step.h"
#include "app/memory/training_model.h"
#include "app/observers/step_observer.h"
#include "app/process/runtime.h"
#include "app/process/startup_timer.h"
#include "app/run/disk_checkpoints.h"
#include "app/run/memory_checkpoints.h"
#include "app/train/decide.h"
#include "checkpoint/weight_source.h"
#include "data/loader.h"

namespace octavo {

// Every method except the accessors is a collective.
class TrainingRun {
 public:
  // Allocates everything, and initializes the weights from `resumed`, model.init_from or random numbers. Any
  // error is an InputError on every rank, and a DamagedCheckpoint if the checkpoint that is read is damaged.
  // `with_validation` allocates the buffers of the validation. `runtime`, `timer` and the checkpoints must outlive the
  // run.
  TrainingRun(const Job& job, Runtime& runtime, StartupTimer& timer, DiskCheckpoints& checkpoints,
              MemoryCheckpoints& memory_checkpoints, std::optional<Checkpoint> resumed,
              const std::function<void(Arena&)>& with_validation);
  // Waits until no save reads the state any more.
  ~TrainingRun();
  TrainingRun(const TrainingRun&) = delete;
  TrainingRun& operator=(const TrainingRun&) = delete;

  Llama& model() { return state_.model; }
  TrainingState& state() { return state_; }
  DiskCheckpoints& checkpoints() { return checkpoints_; }
  const DiskCheckpoints& checkpoints() const { return checkpoints_; }
  const DataReport& data_report() const { return *data_report_; }
  StepResults& results() { return results_; }
  const std::vector<std::unique_ptr<StepObserver>>& observers() const { return observers_; }
  // Returns whether all observers allow saving the state after the step.
  bool allows_save(int64_t step);

  // Returns the progress from which the run was resumed, or to which it rolled back.
  const Progress& start() const { return start_; }
  int64_t tokens_seen(int64_t step) const {
    const BatchSchedule batches = config_.training.batch_schedule();
    return start_.tokens + (batches.samples(step) - batches.samples(start_.step)) * config_.data.seq_len;
  }

  // Queues every kind of work of a step once (app/run/training_state.h).
  void warm_up();

  // Returns the step with the next batch of the data, which is valid until the next call. An error of any rank's loader
  // since the previous batch, such as an invalid token, is thrown on all ranks.
  Step next_batch(int64_t number);
  // Queues a step and the copy of its results. `loss_limit` is TrainingStep::loss_limit.
  void queue_step(Step step, float loss_limit);
  // Waits for the oldest step in flight and returns it with its results.
  Step pop_step();
  // Runs a step, waits for it, and returns its loss. The step is not reported.
  double loss_of_step(Step step);

  // Starts a checkpoint of the current state, which is the state after progress.step.
  void save(const Progress& progress, Save which);
  // Completes pending saves if all ranks have written their parts.
  void poll_saves();
  bool weights_are_finite();

  // Rolls back to the last checkpoint, and discards the checkpoint in memory. The samples of `step`, which must be one
  // of the last few steps, are skipped from then on, also after the run is resumed.
  void roll_back(int64_t step);
  // Sets the progress to an earlier one. The caller restores the state that belongs to it.
  void return_to(const Progress& progress);

  // Returns whether the linears currently use bfloat16 instead of FP8.
  bool in_bfloat16() const { return model_.in_bfloat16(); }
  // Switches the linears between FP8 and bfloat16. The values of the state are lost.
  void switch_precision();

 private:
  void announce_new_state();
  void replace_state();
  void resume_or_initialize(std::optional<Checkpoint>& resumed, WeightSource* initial);
  void open_data();
  void load(Checkpoint& checkpoint, Progress progress);
  void log_events(const Batch& batch, int64_t step);
  void warn_about_no_targets(int64_t step, SampleRange samples);
  std::vector<int64_t> targets_of_step(const Batch& batch);
  TrainingStep work_of(const Step& step) const;

  Config config_;
  Runtime& runtime_;
  StartupTimer& timer_;
  TrainingModel model_;
  TrainingState& state_;  // State of model_.
  StepResults results_;
  DiskCheckpoints& checkpoints_;
  MemoryCheckpoints& memory_checkpoints_;
  const PiecesRead* staged_ = &checkpoints_.staged();  // Point at which the last save has copied the state.
  std::vector<std::unique_ptr<StepObserver>> observers_;
  std::unique_ptr<Loader> loader_;
  int64_t next_sample_ = 0;
  std::optional<DataReport> data_report_;
  std::deque<std::pair<int64_t, SampleRange>> recent_samples_;  // Samples of the last steps, by step.
  nlohmann::json hugging_face_;  // Value of kHfMetaKey in checkpoints. Null if the run began from random weights.
  bool warned_about_no_targets_ = false;
  Progress start_;
};

}  // namespace octavo

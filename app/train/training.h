// Training owns what a stage of a run allocates: model, optimizer, data and their memory. It loads the state at which a
// job begins, executes steps, and saves the state. The loop decides when (app/train/training_loop.h).
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "app/job/job.h"
#include "app/job/progress.h"
#include "app/log/data_report.h"
#include "app/log/step.h"
#include "app/log/step_log.h"
#include "app/observers/step_guard.h"
#include "app/observers/step_observer.h"
#include "app/resolve/training_model.h"
#include "app/run/validation.h"
#include "app/train/decide.h"
#include "app/train/session.h"
#include "checkpoint/weight_source.h"
#include "data/loader.h"

namespace octavo {

// Every method that is not const is a collective, except those that return a reference or a pointer to a part.
class Training {
 public:
  // Allocates the memory of the job's stage and opens data.validation. Any error is thrown as an InputError on every
  // rank.
  // Requires: `session` outlives the object.
  Training(const Job& job, Session& session);
  // Waits until no save reads the state any more.
  ~Training();
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  // Begins `job`, which belongs to the same stage, at `start`: loads the state and opens the data. Throws an InputError
  // on every rank if any rank cannot read them, and a DamagedCheckpoint if the checkpoint is damaged.
  void load(const Job& job, Start& start);
  // Opens the log of the stage, and that of the run if this is its first stage.
  // Requires: called once, after load().
  void open_log();
  // Queues every kind of work of a step once (app/run/training_state.h), in both precisions of a run with
  // precision.guard, and logs that the stage begins.
  // Requires: called once, after open_log().
  void warm_up();

  // Returns the config of the stage as it is stated (Job::stated).
  const StageConfig& config() const { return config_; }
  const Job& job() const { return job_; }
  // Returns the progress at which the job began.
  const Progress& start() const { return start_; }
  // Returns whether the job began after its last step.
  bool is_finished() const { return start_.step >= config_.training.steps; }
  int64_t tokens_seen(int64_t step) const {
    const BatchSchedule batches = config_.training.batch_schedule();
    return start_.tokens + (batches.samples(step) - batches.samples(start_.step)) * config_.data.seq_len;
  }

  TrainingState& state() { return state_; }
  Validator* validator() { return validator_ ? &*validator_ : nullptr; }  // Null if data.validation is empty.
  const DataReport& data_report() const { return *data_report_; }
  StepLog& log() { return *log_; }
  StepGuard& step_guard() { return step_guard_; }  // Judges the result of each step: skipped, a spike, slow.
  StepResults& results() { return results_; }
  const std::vector<std::unique_ptr<StepObserver>>& observers() const { return observers_; }
  // Returns whether all observers allow saving the state after the step.
  bool allows_save(int64_t step);

  // Returns the step with the next batch of the data, which is valid until the next call. An error of any rank's loader
  // since the previous batch, such as an invalid token, is thrown on all ranks.
  Step next_batch(int64_t number);
  // Queues a step and the copy of its results. `loss_limit` is TrainingStep::loss_limit.
  void queue_step(Step step, float loss_limit);
  // Waits for the oldest step in flight and returns it with its results.
  Step pop_step();
  // Runs a step with the next batch, waits for it, and returns its loss. The step is not reported.
  double loss_of_step(int64_t number);
  // Continues the data at an earlier progress of the job.
  void rewind_data(const Progress& progress);

  // Starts a checkpoint of the current state, which is the state after progress.step.
  void save(const Progress& progress, Save which);
  // Completes pending saves if all ranks have written their parts.
  void poll_saves();
  bool weights_are_finite();

  // Takes a snapshot of the state, which replaces an earlier one.
  // Requires: the config has precision.guard.every > 0.
  const StateSnapshot& take_snapshot();
  const StateSnapshot& snapshot() const { return snapshot_; }
  // Calls `work` with the linears in the other precision (in_other_precision), then restores the state and keeps the
  // snapshot of it.
  // Requires: the state is that after `step`.
  void try_other_precision(int64_t step, const std::function<void()>& work);
  // Returns the samples of one of the last few steps, or nothing if they are unknown.
  std::optional<SampleRange> samples_of(int64_t step) const;

 private:
  void open_data(const Start& start);
  void load_values(Start& start, WeightSource* initial);
  void reserve_snapshot();
  void lay_out(const Job& job);
  void announce_new_state();
  void log_events(const Batch& batch, int64_t step);
  void warn_about_no_targets(int64_t step, SampleRange samples);
  std::vector<int64_t> targets_of_step(const Batch& batch);
  TrainingStep work_of(const Step& step) const;

  const std::chrono::steady_clock::time_point created_ = std::chrono::steady_clock::now();
  Session& session_;
  Runtime& runtime_;
  const StageConfig config_;
  Job job_;  // Job in progress. Later jobs of the stage differ in precision and in the samples that they skip.
  const bool is_first_stage_;  // Whether this is the first stage of the process.
  TrainingModel model_;
  TrainingState& state_;  // State of model_.
  std::optional<Validator> validator_;
  StepResults results_;
  StateSnapshot snapshot_;
  StepGuard step_guard_;
  std::optional<StepLog> log_;
  const PiecesRead* staged_;  // Point at which the last save has copied the state.
  std::vector<std::unique_ptr<StepObserver>> observers_;
  std::unique_ptr<Loader> loader_;
  int64_t next_sample_ = 0;
  std::optional<DataReport> data_report_;
  std::deque<std::pair<int64_t, SampleRange>> recent_samples_;  // Samples of the last steps, by step.
  bool warned_about_no_targets_ = false;
  Progress start_;
};

}  // namespace octavo

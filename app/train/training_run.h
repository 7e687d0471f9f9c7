// A run as it stands: its model and optimizer, data, checkpoints and progress. It takes steps, saves its state, rolls
// back to a checkpoint and switches the precision of its linears. The trainer decides when (app/train/trainer.h).
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "app/config/config.h"
#include "app/log/data_report.h"
#include "app/log/step_log.h"
#include "app/log/step_results.h"
#include "app/memory/training_model.h"
#include "app/process/runtime.h"
#include "app/process/startup_timer.h"
#include "app/run/fp8_report.h"
#include "app/run/step_trace.h"
#include "app/train/corruption_watch.h"
#include "app/train/run_checkpoints.h"
#include "checkpoint/weight_source.h"
#include "data/loader.h"

namespace octavo {

// What belongs to the state after some step, beside what is on the device.
struct Progress {
  int64_t step = 0;    // done
  int64_t tokens = 0;  // seen by all ranks
  double steps_s = 0;  // that the steps took
  nlohmann::json loader_state = {};
  nlohmann::json guard = {};   // StepGuard::to_json
  int64_t bfloat16_until = 0;  // Last step of a fallback from FP8 to bfloat16. 0: none.
};

// The batch of a step.
struct FedBatch {
  const Batch* batch = nullptr;
  SampleRange samples;          // Samples of all ranks, skipped ones included.
  nlohmann::json loader_state;  // State of the loader after this batch.
  double data_ms = 0;           // Time that the host waited for the batch.
  double data_lost_ms = 0;      // Part of data_ms in which the device was idle.
};

// Every method but the accessors is a collective.
class TrainingRun {
 public:
  // Allocates everything, and takes the weights from `resumed`, config.model.init_from or a random initialization. What
  // is wrong is an InputError on every rank. `with_validation` allocates what the validation needs. `runtime`, `timer`
  // and `checkpoints` must outlive the run.
  TrainingRun(const Config& config, Runtime& runtime, StartupTimer& timer, RunCheckpoints& checkpoints,
              std::optional<Checkpoint> resumed, const std::function<void(Arena&)>& with_validation);
  TrainingRun(const TrainingRun&) = delete;
  TrainingRun& operator=(const TrainingRun&) = delete;

  Llama& model() { return state_.model; }
  TrainingState& state() { return state_; }
  const TrainingModel& training_model() const { return model_; }
  RunCheckpoints& checkpoints() { return checkpoints_; }
  const RunCheckpoints& checkpoints() const { return checkpoints_; }
  CorruptionWatch& corruption() { return *corruption_; }
  const DataReport& data_report() const { return *data_report_; }
  StepResults& results() { return results_; }

  // What the run goes on from, or was set back to.
  const Progress& start() const { return start_; }
  int64_t tokens_seen(int64_t step) const {
    const BatchSchedule batches = config_.training.batch_schedule();
    return start_.tokens + (batches.samples(step) - batches.samples(start_.step)) * config_.data.seq_len;
  }

  // Queues every kind of work of a step, so that algorithms are timed, plans built and modules loaded before step 1.
  void warm_up();

  // Returns the next batch of the data, which is valid until the next call. All ranks learn what one of them has met
  // since the batch before, a bad token for example.
  const FedBatch& next_batch();
  // Queues a step and the copy of its results (TrainingStep::loss_limit).
  void queue_step(int64_t step, const FedBatch& fed, float loss_limit);
  // The oldest step whose result is pending, which it waits for.
  FinishedStep pop_step();
  bool fp8_due(int64_t step) const { return fp8_reporter_ && fp8_reporter_->due(step); }
  // What was measured of the casts of a popped step that is due.
  std::vector<Fp8TensorReport> pop_fp8() { return fp8_reporter_->pop(); }
  // Records what is queued from now on. A collective.
  std::unique_ptr<StepTrace> trace() { return std::make_unique<StepTrace>(state_, runtime_.group()); }
  // Takes a step at once, which is reported nowhere, and returns its loss.
  double loss_of_step(int64_t step, const FedBatch& fed);

  // Starts the checkpoint of the state as it is, which is that after progress.step.
  void save(const Progress& progress, RunCheckpoints::Save which);
  bool weights_are_finite();

  // Back to the last checkpoint; the samples of a step, one of the last few, are passed over from then on.
  void roll_back(int64_t step);
  // Sets the progress to an earlier one, whose state the caller restores.
  void return_to(const Progress& progress);

  // Whether the linears are in bfloat16 instead of FP8.
  bool in_bfloat16() const { return model_.in_bfloat16(); }
  // Switches between the two. The values of the state are lost.
  void switch_precision();

 private:
  void prepare_fp8_reports();
  void resume_or_initialize(std::optional<Checkpoint>& resumed, WeightSource* initial);
  void open_data(const nlohmann::json* loader_state);
  void load(Checkpoint& checkpoint);
  void log_events(const Batch& batch, int64_t step);
  void warn_of_no_targets(int64_t step, SampleRange samples);
  std::vector<int64_t> targets_of_step(const Batch& batch);
  MetricRow row_of(const FinishedStep& step) const;
  TrainingStep training_step_of(int64_t step, const StepData& data) const;

  Config config_;
  Runtime& runtime_;
  StartupTimer& timer_;
  TrainingModel model_;
  TrainingState& state_;  // of model_
  StepResults results_;
  RunCheckpoints& checkpoints_;
  std::optional<CorruptionWatch> corruption_;
  std::optional<Fp8Reporter> fp8_reporter_;  // where statistics are wanted
  std::unique_ptr<Loader> loader_;
  FedBatch fed_;
  int64_t next_sample_ = 0;
  std::optional<DataReport> data_report_;
  std::deque<StepData> step_data_;                              // of the steps whose results are pending
  std::deque<std::pair<int64_t, SampleRange>> recent_samples_;  // of the last steps
  bool warned_of_no_targets_ = false;
  Progress start_;
};

}  // namespace octavo

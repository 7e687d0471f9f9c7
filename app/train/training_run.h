// A run as it stands: model and optimizer, data, checkpoints, and how far it is; what takes it a step on, saves it,
// sets it back, or over to linears in bfloat16. What is done when, and what is said of it, is the trainer's
// (app/train/trainer.h).
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "app/config/config.h"
#include "app/guard/state_snapshot.h"
#include "app/log/data_report.h"
#include "app/log/step_log.h"
#include "app/log/step_results.h"
#include "app/memory/training_model.h"
#include "app/process/runtime.h"
#include "app/process/startup_timer.h"
#include "app/run/fp8_report.h"
#include "app/run/step_trace.h"
#include "app/train/batch_feed.h"
#include "app/train/corruption_watch.h"
#include "app/train/run_checkpoints.h"
#include "checkpoint/weight_source.h"

namespace octavo {

// What belongs to the state after some step, beside what is on the device.
struct Progress {
  int64_t step = 0;    // done
  int64_t tokens = 0;  // seen by all ranks
  double steps_s = 0;  // that the steps took
  nlohmann::json loader_state = {};
  nlohmann::json guard = {};  // StepGuard::to_json
};

// Every method but the accessors is a collective.
class TrainingRun {
 public:
  // Allocates everything, and takes the weights from the checkpoint to resume, config.model.init_from or a random
  // initialization. What is wrong is an InputError on every rank; OtherStage where it goes on in another stage than
  // that of the config. `runtime` and `timer`, which has the times of all this, must outlive the run.
  // `with_validation`, once there is memory: takes that of the validation.
  TrainingRun(const Config& config, Runtime& runtime, StartupTimer& timer,
              const std::function<void(Arena&)>& with_validation);
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

  // So that algorithms are timed, plans built and modules loaded before the first step.
  void warm_up();

  // The next step's batch; then the step and the copy of its results are queued (TrainingStep::loss_limit).
  void next_batch();
  void queue_step(int64_t step, float loss_limit);
  // The oldest step whose result is pending, which it waits for.
  FinishedStep pop_step();
  bool fp8_due(int64_t step) const { return fp8_reporter_ && fp8_reporter_->due(step); }
  // What was measured of the casts of a popped step that is due.
  std::vector<Fp8TensorReport> pop_fp8() { return fp8_reporter_->pop(); }
  // Records what is queued from now on. A collective.
  std::unique_ptr<StepTrace> trace() {
    return std::make_unique<StepTrace>(state_, training_rank(runtime_), runtime_.group());
  }
  // The loss of a step on the next batch, which is taken at once and reported nowhere.
  double loss_of_step(int64_t step);
  // Batches from now on can be had again, after replay(), until forget_batches().
  void record_batches() { feed_->record(); }
  void replay_batches() { feed_->replay(); }
  void forget_batches() { feed_->forget(); }

  // Starts the checkpoint of the state as it is, which is that after progress.step.
  void save(const Progress& progress, RunCheckpoints::Save which);
  bool weights_are_finite();

  // Back to the last checkpoint; the samples of a step, one of the last few, are passed over from then on.
  void roll_back(int64_t step);
  // Back to what keep() kept, the batches since then too.
  void return_to(const Progress& progress);

  // Whether the linears are in bfloat16 instead of FP8, and the last step that they are to be.
  bool in_bfloat16() const { return model_.in_bfloat16(); }
  int64_t bfloat16_until() const { return bfloat16_until_; }
  void set_bfloat16_until(int64_t step) { bfloat16_until_ = step; }
  // The other of the two, with all of the state lost; with it kept, after `steps_done`.
  void switch_precision();
  void switch_with_state(int64_t steps_done);
  // A copy of the state in host memory, and back; the latter in either precision.
  void keep();
  void restore_kept(int64_t steps_done);

 private:
  void prepare_fp8_reports();
  void reserve_snapshot();
  void resume_or_initialize(std::optional<Checkpoint>& found, WeightSource* initial);
  void open_data(const nlohmann::json* loader_state);
  void load(Checkpoint& checkpoint);
  void log_events(const Batch& batch, int64_t step);
  void warn_of_no_targets(int64_t step, SampleRange samples);
  std::vector<int64_t> targets_of_step(const Batch& batch);
  TrainingStep training_step_of(int64_t step, const StepData& data) const;

  Config config_;
  Runtime& runtime_;
  StartupTimer& timer_;
  TrainingModel model_;
  TrainingState& state_;  // of model_
  StepResults results_;
  RunCheckpoints checkpoints_;
  StateSnapshot snapshot_;
  std::optional<CorruptionWatch> corruption_;
  std::optional<Fp8Reporter> fp8_reporter_;  // where statistics are wanted
  std::optional<BatchFeed> feed_;
  std::optional<DataReport> data_report_;
  const FedBatch* batch_ = nullptr;                             // for the step to come
  std::deque<StepData> step_data_;                              // of the steps whose results are pending
  std::deque<std::pair<int64_t, SampleRange>> recent_samples_;  // of the last steps
  bool warned_of_no_targets_ = false;
  Progress start_;
  int64_t bfloat16_until_ = 0;
};

}  // namespace octavo

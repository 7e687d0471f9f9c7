// The training loop: one object a run. See Trainer::run() for the life of a step.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "app/config/config.h"
#include "app/memory/training_model.h"
#include "app/run/fp8_report.h"
#include "app/run/runtime.h"
#include "app/run/startup_timer.h"
#include "app/run/validation.h"
#include "app/train/batch_feed.h"
#include "app/train/corruption_watch.h"
#include "app/train/data_report.h"
#include "app/train/goodput.h"
#include "app/train/precision_guard.h"
#include "app/train/run_checkpoints.h"
#include "app/train/signals.h"
#include "app/train/step_guard.h"
#include "app/train/step_log.h"
#include "app/train/step_results.h"

namespace octavo {

class Trainer {
 public:
  // Opens the data, allocates everything, and takes the weights from the checkpoint to resume, config.model.init_from
  // or a random initialization. A collective; what is wrong is an InputError on every rank, before any training.
  // `config` is validated and its device resolved; `runtime` and `timer`, which has the times of all this, must outlive
  // the trainer.
  Trainer(const Config& config, Runtime& runtime, StartupTimer& timer);

  enum class Outcome { kDone, kStopped };
  // Trains up to config.training.steps; kStopped after a signal to any rank, once a checkpoint is saved. Error when too
  // many steps in a row had to be passed over, or as training.on_corruption says. After a failure that all ranks share,
  // the checkpoint on its way is completed first.
  Outcome run(StopSignals& signals);

 private:
  // What ranks ask for between two steps; the largest is done.
  using Request = int64_t;
  static constexpr Request kGoOn = 0;
  static constexpr Request kSave = 1;
  static constexpr Request kRollBack = 1;  // and the number of the step that is the reason
  static constexpr Request kStop = std::numeric_limits<Request>::max();
  static constexpr Request kUseBFloat16 = kStop - 1;

  void resume_or_initialize(std::optional<Checkpoint>& found);
  void open_data(const nlohmann::json* loader_state);
  void load(Checkpoint& checkpoint);
  void prepare_fp8_reports();
  void warm_up();
  void log_start();
  Outcome train(StopSignals& signals);
  void end_run();
  std::vector<int64_t> targets_of_step(const Batch& batch);
  TrainingStep training_step_of(int64_t step, const StepData& data) const;
  void train_step(int64_t step, const FedBatch& fed);
  bool fp8_due(int64_t step) const { return fp8_reporter_ && fp8_reporter_->due(step); }
  Request agreed_request(const StopSignals& signals);
  bool should_stop(const StopSignals& signals) { return agreed_request(signals) == kStop; }
  // The oldest step whose result is pending, which it waits for. Judges it.
  FinishedStep pop_step();
  // And warns of what is wrong with it; Error where the run cannot go on.
  void judge(const FinishedStep& step);
  void give_up(int64_t step);
  // Validates if asked, unless a signal comes meanwhile, and reports a step when it is due, `always`, or validated.
  void finish_step(const FinishedStep& step, bool always, bool validating, const StopSignals& signals);
  void report(const FinishedStep& step, const std::optional<ValidationLoss>& validation);
  bool goes_back(Request request);
  void go_back(Request request);
  // To the last checkpoint; the samples of the step are passed over from then on.
  void roll_back(int64_t spike);
  // To before the steps that were compared.
  void go_on_in_bfloat16();
  void reserve_snapshot();
  void with_snapshot(int64_t steps_done, const std::function<void()>& work);
  void restore_snapshot(int64_t steps_done);
  void switch_precision();
  void measure_in_bfloat16(int64_t step);
  double loss_of_step(int64_t step);
  void compare_with_bfloat16(int64_t step, double loss);
  void back_to_fp8(int64_t step, const StopSignals& signals);
  void save(int64_t step, const nlohmann::json& loader_state, bool final);
  bool weights_are_finite();
  void write_goodput(bool end);
  int64_t tokens_per_step() const;
  int64_t tokens_seen(int64_t step) const { return start_tokens_ + (step - start_step_) * tokens_per_step(); }

  Config config_;
  Runtime& runtime_;
  StartupTimer& timer_;
  TrainingModel model_;
  TrainingState& state_;  // of model_
  StepResults results_;
  std::optional<Fp8Reporter> fp8_reporter_;  // where statistics are wanted
  std::optional<Validator> validator_;
  RunCheckpoints checkpoints_;
  std::optional<CorruptionWatch> corruption_;
  StepGuard guard_;
  PrecisionGuard precision_guard_;
  std::optional<BatchFeed> feed_;
  std::optional<DataReport> data_report_;
  std::deque<StepData> step_data_;  // of the steps whose results are pending
  std::optional<StepLog> log_;
  std::optional<Goodput> goodput_;
  int64_t start_step_ = 0;    // already done when the run began, or was set back
  int64_t start_tokens_ = 0;  // seen by then
  double start_steps_s_ = 0;  // that those steps took
  // The last step that changed the weights, and the loader's state after it.
  int64_t good_step_ = 0;
  nlohmann::json good_loader_state_;
  nlohmann::json loader_state_;  // after the last step judged
  Request wanted_ = kGoOn;       // by this rank
  int64_t saved_step_ = 0;       // of the last checkpoint that was begun, or gone on from
  int64_t rollbacks_ = 0;        // to one checkpoint
  std::deque<std::pair<int64_t, SampleRange>> recent_samples_;  // of the last steps
  // Of the run before the steps that are compared with bfloat16.
  struct Progress {
    int64_t tokens = 0;
    double steps_s = 0;
    nlohmann::json loader_state;
    nlohmann::json guard;
  };
  Progress before_comparison_;
  std::optional<double> precision_gap_;  // found by the step just judged
  int64_t bfloat16_until_ = 0;           // the last step that is to be taken in bfloat16 instead of FP8
  double validation_s_ = 0;              // since the last step's result
  bool goodput_fails_ = false;
};

}  // namespace octavo

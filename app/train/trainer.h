// The training loop: one object a run. See Trainer::run() for the life of a step.
#pragma once

#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/memory/training_model.h"
#include "app/run/fp8_report.h"
#include "app/run/runtime.h"
#include "app/run/startup_timer.h"
#include "app/run/validation.h"
#include "app/train/data_report.h"
#include "app/train/metrics.h"
#include "app/train/run_checkpoints.h"
#include "app/train/signals.h"
#include "app/train/step_results.h"
#include "checkpoint/checkpoint.h"
#include "data/loader.h"

namespace octavo {

class Trainer {
 public:
  // Opens the data, allocates everything, and takes the weights from the checkpoint to resume, config.model.init_from
  // or a random initialization. A collective; what is wrong is an InputError on every rank, before any training.
  // `config` is validated and its device resolved; `runtime` and `timer`, which has the times of all this, must outlive
  // the trainer.
  Trainer(const Config& config, Runtime& runtime, StartupTimer& timer);

  enum class Outcome { kDone, kStopped };
  // Trains up to config.training.steps; kStopped after a signal to any rank, once a checkpoint is saved. Error when the
  // loss is not finite. After a failure that all ranks share, the checkpoint on its way is completed first.
  Outcome run(StopSignals& signals);

 private:
  // Since the last logged step.
  struct Interval {
    int64_t steps = 0;
    double milliseconds = 0;
    double data_ms = 0;
  };

  // What is known of a step when it is queued, and reported when its result is there.
  struct StepData {
    std::vector<int64_t> targets;  // by dataset, that its loss is the mean of
    NumbersByName epochs;
  };

  void resume_or_initialize(std::optional<Checkpoint>& found);
  void prepare_fp8_reports();
  void warm_up();
  Outcome train(StopSignals& signals);
  void end_run();
  const Batch& next_batch();
  std::vector<int64_t> targets_of_step(const Batch& batch);
  void train_step(int64_t step, const Batch& batch);
  bool fp8_due(int64_t step) const { return fp8_reporter_ && fp8_reporter_->due(step); }
  // Waits for the oldest step whose result is pending; then validates if asked, unless a signal comes meanwhile, and
  // reports the step when it is due, `always`, or validated.
  void finish_step(bool always, bool validating, const StopSignals& signals);
  void report(const StepResult& result, const StepData& data, const std::optional<ValidationLoss>& validation);
  void save(int64_t step, bool final);
  bool should_stop(const StopSignals& signals);
  // What a rank meets by itself between collectives (a full log disk) is kept until all can learn of it.
  void keep_failure(const std::function<void()>& work);
  void rethrow_kept_failure() const;
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
  std::unique_ptr<Loader> loader_;
  std::optional<DataReport> data_report_;
  std::deque<StepData> step_data_;        // of the steps whose results are pending
  std::optional<MetricsWriter> metrics_;  // on rank 0
  int64_t start_step_ = 0;                // already done when the run began
  int64_t start_tokens_ = 0;              // seen by then
  std::exception_ptr failure_;
  Interval interval_;
};

}  // namespace octavo

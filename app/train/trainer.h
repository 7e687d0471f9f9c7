// The training loop: one object a run. See Trainer::run() for the life of a step.
#pragma once

#include <chrono>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/config/config.h"
#include "app/guard/precision_guard.h"
#include "app/guard/step_guard.h"
#include "app/log/goodput.h"
#include "app/log/step_log.h"
#include "app/process/console.h"
#include "app/process/runtime.h"
#include "app/process/startup_timer.h"
#include "app/run/validation.h"
#include "app/train/link_watch.h"
#include "app/train/run_folder.h"
#include "app/train/signals.h"
#include "app/train/training_run.h"

namespace octavo {

class Trainer {
 public:
  // Opens the data, allocates everything, and takes the weights from the checkpoint to resume, config.model.init_from
  // or a random initialization. A collective; what is wrong is an InputError on every rank, before any training.
  // `config` is validated and its device resolved; `runtime` and `timer`, which has the times of all this, must outlive
  // the trainer. The goodput is carried on from the stage before, where there was one. `console`: where the progress is
  // shown, if it is a terminal. `folder`, where there is one, is locked and opened. OtherStage as TrainingRun.
  Trainer(const Config& config, Runtime& runtime, StartupTimer& timer, std::optional<Goodput> goodput = {},
          Console* console = nullptr, RunFolder* folder = nullptr);

  const TrainingRun& training_run() const { return run_; }
  const Validator* validator() const { return validator_ ? &*validator_ : nullptr; }

  enum class Outcome { kDone, kStopped };
  // Whether the run starts from its last step: then run() does nothing, and nothing is written.
  bool is_finished() const { return run_.start().step >= config_.training.steps; }
  // Trains up to config.training.steps; kStopped after a signal to any rank, once a checkpoint is saved, unless
  // the run was to go back to the last one by then. Error when too
  // many steps in a row had to be passed over, or as training.on_corruption says. After a failure that all ranks share,
  // the checkpoint on its way is completed first.
  Outcome run(StopSignals& signals);
  // After a run: the step of its last checkpoint, and what it made of its time.
  int64_t saved_step() const { return run_.saved_step(); }
  std::optional<Goodput> take_goodput() { return std::move(goodput_); }

 private:
  // What ranks ask for between two steps; the largest is done.
  using Request = int64_t;
  static constexpr Request kGoOn = 0;
  static constexpr Request kSave = 1;
  static constexpr Request kRollBack = 1;  // and the number of the step that is the reason
  static constexpr Request kStop = std::numeric_limits<Request>::max();
  static constexpr Request kUseBFloat16 = kStop - 1;

  std::filesystem::path resumed_from() const;
  void log_start();
  Outcome train(StopSignals& signals);
  void refuse_final_save(int64_t step);
  void end_run();
  Request agreed_request(const StopSignals& signals);
  bool should_stop(const StopSignals& signals) { return agreed_request(signals) == kStop; }
  // The oldest step whose result is pending, which it waits for. Judges it.
  FinishedStep pop_step();
  Progress progress_after(int64_t step) const;
  // Warns of what is wrong with a step, and wants what follows.
  void judge(const FinishedStep& step);
  // Validates if asked, unless a signal comes meanwhile, and reports a step when it is due, `always`, or validated.
  // Error where the run cannot go on.
  void finish_step(const FinishedStep& step, bool always, bool validating, const StopSignals& signals);
  // Of the step that was just waited for.
  void write_trace(StepTrace& trace, int64_t step);
  void probe_links();
  void give_up(int64_t step);
  void report(const FinishedStep& step, const std::optional<ValidationLoss>& validation);
  bool goes_back(Request request);
  bool was_to_go_back(int64_t step);
  void go_back(Request request);
  void roll_back(int64_t spike);
  void go_on_in_bfloat16();
  void back_to_fp8(int64_t step, const StopSignals& signals);
  void measure_in_bfloat16(int64_t step);
  void compare_with_bfloat16(int64_t step, double loss);
  void write_goodput(bool end);
  void save(const Progress& progress, RunCheckpoints::Save which);

  const Config config_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  Runtime& runtime_;
  StartupTimer& timer_;
  std::optional<Validator> validator_;  // made by run_
  TrainingRun run_;
  StepGuard guard_;
  PrecisionGuard precision_guard_;
  LinkWatch links_;
  std::optional<StepLog> log_;
  std::optional<Goodput> goodput_;
  const bool first_of_process_;
  nlohmann::json loader_state_;  // after the last step judged
  Progress good_;                // before the steps in a row that are passed over
  Progress before_comparison_;
  std::optional<double> precision_gap_;  // found by the step just judged
  Request wanted_ = kGoOn;               // by this rank
  std::string rolled_back_to_;           // checkpoint, and how often in a row
  int64_t rollbacks_ = 0;
  double validation_s_ = 0;  // since the last step's result
};

}  // namespace octavo

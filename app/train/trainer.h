// The training loop. Trainer::train() in trainer.cpp shows the life of a step; what follows a step is decided in
// app/train/decide.h.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/config/config.h"
#include "app/guard/step_guard.h"
#include "app/log/goodput.h"
#include "app/log/step_log.h"
#include "app/process/console.h"
#include "app/process/runtime.h"
#include "app/process/signals.h"
#include "app/process/startup_timer.h"
#include "app/run/validation.h"
#include "app/train/decide.h"
#include "app/train/precision_comparison.h"
#include "app/train/run_folder.h"
#include "app/train/training_run.h"

namespace octavo {

// What the stages of a run share.
struct RunContext {
  Runtime& runtime;
  StartupTimer& timer;
  DiskCheckpoints& checkpoints;
  MemoryCheckpoints& memory_checkpoints;
  Console* console = nullptr;           // Shows the progress if it is a terminal.
  RunFolder* folder = nullptr;          // Locked, claimed and opened by the first stage.
  std::optional<Goodput> goodput = {};  // Set by the first stage.
};

class Trainer {
 public:
  // Opens the data, allocates everything, and takes the weights from `resumed`, config.model.init_from or a random
  // initialization. A collective; what is wrong is an InputError on every rank, before any training. `config`, of a
  // stage or of a whole run, is validated and its device resolved. `context` must outlive the trainer.
  Trainer(const Config& config, RunContext& context, std::optional<Checkpoint> resumed);

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

 private:
  std::filesystem::path resumed_from() const;
  void begin();
  void log_start();
  Outcome train(StopSignals& signals);
  // Returns what the config asks for after a step that is about to be queued.
  Due due_after(int64_t step, bool owes_save) const;
  void queue_step(int64_t step, StopSignals& signals);
  bool is_watched(int64_t step) const;  // Whether an observer wants the step's result before the next step.
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
  // Returns the step that the run continues after, or nothing if the run has ended.
  std::optional<int64_t> perform(const Actions& actions, const Facts& facts, int64_t step);
  void say(Notice notice, const Facts& facts, int64_t step) const;
  void save(Save which, int64_t step);
  [[noreturn]] void refuse_final_save(int64_t step);
  [[noreturn]] void give_up(int64_t step);
  void roll_back(Next to, int64_t spike);
  void roll_back_to_checkpoint(int64_t spike);
  void end_run();
  // Returns the progress after `step`, the last one judged.
  Progress progress_after(int64_t step) const;
  bool is_first(int64_t step) const { return step == run_.start().step + 1; }
  // Counts the time since `begin`, in which the device did no step, as `use`.
  void account(Goodput::Use use, std::chrono::steady_clock::time_point begin);
  void write_goodput(bool end);

  const Config config_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  Runtime& runtime_;
  StartupTimer& timer_;
  MemoryCheckpoints& memory_checkpoints_;
  std::optional<Validator> validator_;  // made by run_
  TrainingRun run_;
  StepGuard guard_;
  PrecisionComparison comparison_;
  std::optional<StepLog> log_;
  std::optional<Goodput>& goodput_;
  const bool first_of_process_;
  const int64_t steps_in_flight_ = runtime_.stream().is_cuda() ? 1 : 0;  // While the host queues the next step.
  nlohmann::json loader_state_;                                          // after the last step judged
  Progress good_;               // before the steps in a row that are passed over
  Wishes wanted_;               // Wishes of this rank, without those of the signals and the clock.
  std::string rolled_back_to_;  // The checkpoint that the run rolled back to last,
  int64_t rollbacks_ = 0;       // and how often in a row.
  double accounted_s_ = 0;      // Time between steps that account() has counted since the last result.
};

}  // namespace octavo

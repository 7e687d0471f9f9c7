// A run, or a stage of it: opens what it needs, and runs the training loop (app/train/training_loop.h).
#pragma once

#include <chrono>
#include <optional>

#include "app/config/config.h"
#include "app/process/console.h"
#include "app/process/runtime.h"
#include "app/process/signals.h"
#include "app/process/startup_timer.h"
#include "app/records/run_folder.h"
#include "app/run/validation.h"
#include "app/train/training_loop.h"

namespace octavo {

// The objects that the stages of a run share.
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

  // Whether the run starts from its last step: then run() does nothing, and nothing is written.
  bool is_finished() const { return run_.start().step >= config_.training.steps; }
  // Trains up to config.training.steps. Returns kStopped after a signal to any rank, once a checkpoint is saved, unless
  // the run was to roll back to the last one. Throws Error if too many steps in a row were skipped, or as
  // training.on_corruption says. Completes a save on its way before it throws a failure that all ranks share.
  RunOutcome run(StopSignals& signals);

 private:
  std::filesystem::path resumed_from() const;
  void begin();
  void log_start();

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
};

}  // namespace octavo

// Trainer performs a run, or one stage of it: it opens data and checkpoints, allocates everything, and runs the
// training loop (app/train/training_loop.h).
//
// Each object owns those that are indented below it:
//
//     RunContext              lasts as long as the process: the goodput, and references to what all stages share
//     Trainer                 lasts as long as a stage
//       TrainingRun           executes steps, saves and loads the state, knows the progress (app/job/progress.h)
//         TrainingModel       one arena, and the layout of the state in it (app/memory/training_model.h)
//           TrainingState     the model, its optimizer and batch, whose tensors are in the arena
//       Validator, StepGuard, PrecisionComparison, StepLog
//     TrainingLoop            lasts as long as Trainer::run() and borrows the parts of the Trainer (RunParts)
//       RunActions            performs what decide() returns
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/process/console.h"
#include "app/process/runtime.h"
#include "app/process/signals.h"
#include "app/process/startup_timer.h"
#include "app/records/run_folder.h"
#include "app/run/validation.h"
#include "app/train/training_loop.h"

namespace octavo {

// The objects that all stages of a run share.
struct RunContext {
  Runtime& runtime;
  StartupTimer& timer;
  DiskCheckpoints& checkpoints;
  MemoryCheckpoints& memory_checkpoints;
  Console* console = nullptr;           // Shows the progress line if it is a terminal.
  RunFolder* folder = nullptr;          // The first stage locks, claims and opens the folder.
  std::optional<Goodput> goodput = {};  // Created when the first stage begins.
  // On rank 0, sentences about lines of log files that stages could not write.
  std::vector<std::string> lost_lines = {};
};

class Trainer {
 public:
  // Opens the data, allocates everything, and initializes the weights from `resumed`, model.init_from or random
  // numbers. A collective. Any error is thrown as an InputError on every rank, before training begins. `context` must
  // outlive the trainer.
  Trainer(const Job& job, RunContext& context, std::optional<Checkpoint> resumed);

  const TrainingRun& training_run() const { return run_; }
  const Validator* validator() const { return validator_ ? &*validator_ : nullptr; }

  // Returns whether the run is already complete. In that case run() does nothing, and nothing is written.
  bool is_finished() const { return run_.start().step >= config_.training.steps; }
  // Trains until config.training.steps. Returns kStopped after a signal to any rank; a checkpoint is saved first,
  // unless the run was about to roll back. Throws an Error if too many steps in a row were skipped, or if
  // training.on_corruption requires it. Before throwing an error that all ranks share, completes a pending save.
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
  std::optional<Validator> validator_;  // Created by the constructor of run_.
  TrainingRun run_;
  StepGuard step_guard_;
  PrecisionComparison comparison_;
  std::optional<StepLog> log_;
  std::optional<Goodput>& goodput_;
  std::vector<std::string>& lost_lines_;
  const bool first_of_process_;
};

}  // namespace octavo

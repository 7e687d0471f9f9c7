// Session holds what a process of a run has from its start to its end, and finds where training begins.
//
// Each object owns those that are indented below it:
//
//     Session                 lasts as long as the process: ranks and streams, log, checkpoints, goodput
//     Training                lasts as long as a stage
//       TrainingModel         one arena, and the layout of the state in it (app/resolve/training_model.h)
//         TrainingState       the model, its optimizer and batch, whose tensors are in the arena
//       Loader, Validator, StepGuard, StateSnapshot, StepLog
//     TrainingLoop            lasts as long as a job, which ends with its stage, a rollback or a change of precision
//       PrecisionComparison
//       RunActions            performs what decide() returns
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "app/config/config.h"
#include "app/job/progress.h"
#include "app/process/console.h"
#include "app/process/runtime.h"
#include "app/process/startup_timer.h"
#include "app/records/goodput.h"
#include "app/records/metric_row.h"
#include "app/records/run_folder.h"
#include "app/run/checkpoint_command.h"
#include "app/run/disk_checkpoints.h"
#include "app/run/memory_checkpoints.h"
#include "app/train/state_snapshot.h"

namespace octavo {

// Where a job begins: its progress, and the values of its state. These are in a checkpoint, in a snapshot of the
// stage's Training, or nowhere if the run begins with its initial weights.
struct Start {
  Progress progress = {};
  std::variant<std::monostate, Checkpoint, const StateSnapshot*> values = {};
};

// Why the steps of a job ended: the run is done or was stopped by a signal, its stage is done, it rolls back, or its
// fallback to bfloat16 is over.
enum class Ended : uint8_t { kDone, kStopped, kStage, kRollback, kFallback };

struct Outcome {
  Ended ended = Ended::kDone;
  std::optional<Start> next = {};  // Where the next job begins. Nothing if the run ends.
};

class Session {
 public:
  // Connects the ranks and opens the directories of checkpoints. `console` shows the progress line if it is a terminal,
  // and may be null. A collective.
  // Requires: `timer` and `console` outlive the session.
  Session(const Setting& setting, ProcessGroup& group, StartupTimer& timer, Console* console = nullptr);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Returns where the run begins. With checkpoint.resume: auto, this is the newer one of the checkpoints on disk and in
  // memory. Its checksums are compared later, while its state is loaded. Throws an InputError if the run may not resume
  // the checkpoint. A collective.
  Start find_start();
  // Returns where the run begins if the checkpoint of `start` turned out to be damaged: at the newest undamaged
  // checkpoint. Throws `damage` as an InputError if checkpoint.resume is not auto, or if the checkpoint of `start` had
  // been verified before. A collective.
  Start find_undamaged_start(const Start& start, const DamagedCheckpoint& damage);

  // Returns the newest undamaged checkpoint that the run has saved or resumed (DiskCheckpoints::open_last). A
  // collective.
  std::optional<Checkpoint> open_last() { return checkpoints.open_last(needed_); }

  // Adds the time since `begin`, during which the device computed no step, to `use`.
  void account(Goodput::Use use, std::chrono::steady_clock::time_point begin);
  bool has_accounted() const { return accounted_s_ > 0; }
  // Returns the seconds that account() has added since the last call.
  double take_accounted() { return std::exchange(accounted_s_, 0); }

  // Locks the run's folder and claims it for this run, which begins at `start` (RunFolder::claim). Not a collective.
  void claim_folder(const Progress& start);
  // Opens the files of the folder, moves checkpoints of other runs aside, begins the checkpoints in memory, and begins
  // to measure the goodput. A collective.
  // Requires: claim_folder() was called, and everything else that may refuse the run has passed.
  void begin(const Progress& start);
  // Runs checkpoint.command for a checkpoint that is newly complete. Returns whether this rank runs a command.
  bool poll_command();
  // Adds the numbers of the next command to a row (CheckpointCommand::next_numbers). Returns whether there were any.
  bool add_evaluation(MetricRow& row);
  // Returns whether begin() was called. An InputError after that is thrown as an Error, because the input was accepted.
  bool has_begun() const { return goodput.has_value(); }
  // Returns whether a job that begins now appends to the metrics in the folder.
  bool continues() const { return has_begun() || config.checkpoint.resume != "never"; }

  const Config config;  // Config of the whole run.
  StartupTimer& timer;
  Console* const console;
  Runtime runtime;
  RunFolder folder;
  DiskCheckpoints checkpoints;
  MemoryCheckpoints memory_checkpoints;
  std::optional<CheckpointCommand> checkpoint_command;  // On rank 0, if there is one. Created by begin().
  std::optional<Goodput> goodput;                       // Created by begin().
  // On rank 0, sentences about lines of log files that stages could not write.
  std::vector<std::string> lost_lines;

 private:
  std::optional<Checkpoint> open_to_resume();
  Start start_at(std::optional<Checkpoint> resumed);

  const std::vector<TensorPart>
      needed_;                    // Parts of a checkpoint that this rank loads, whatever the stage and precision are.
  bool verifies_newest_ = false;  // Whether the newest checkpoint is verified before its state is loaded.
  double accounted_s_ = 0;        // Time between steps that account() has added, in seconds.
};

}  // namespace octavo

// Decides what a run does after a step: what it saves, and how it continues.
//
// decide() is a pure function. Its argument does not contain streams, files or ranks, and is equal on all ranks, so
// that all ranks make the same decision. The loop (app/train/training_loop.h) collects the facts, and
// app/train/run_actions.h performs the actions.
//
// Properties that tests/app/train/decide_test.cpp checks on random sequences of events:
// - A run that continues saves no state while steps are being skipped or a comparison with bfloat16 is running. Only
// the final save is made even then.
// - A state that the run should roll back from is saved only if there is no checkpoint to roll back to.
// - A stop request ends the run after the step at which it is noticed.
// - A postponed save is made as soon as nothing prevents it, unless the run rolls back.
// - What is due at a step is done, or named as cut short, whether this process ran the step or loaded its state.
#pragma once

#include <cstdint>
#include <string>

namespace octavo {

// Work that the config requests after a step. Known when the step is queued.
struct Due {
  bool last = false;         // The step is the last step of the run or of its stage.
  bool save = false;         // checkpoint.every is reached, or a save was postponed and can start at once.
  bool memory_save = false;  // checkpoint.in_memory_every is reached, and a save in memory can start at once.
  bool validation = false;   // validation.every is reached, or the step is the last one.
  bool comparison = false;   // precision.guard.every is reached, and no comparison is running.
  bool resume_fp8 = false;   // The step is the last step of a fallback to bfloat16.

  bool any() const { return last || save || memory_save || validation || comparison || resume_fp8; }
};

// Returns the part of `due` that remains if the state after `step` was loaded from a checkpoint. In a step, the
// statistics and validation precede the save, and the checkpoint replaces the save. What follows the save remains:
// beginning a comparison, or returning to FP8. Nothing is due at step 0, with which training begins.
Due due_after_loading(const Due& due, int64_t step);

enum class RollBack : uint8_t {
  kNone,
  kCheckpoint,  // Roll back to the last checkpoint because of a loss spike.
  kComparison,  // Roll back to the state before the comparison with bfloat16, because the losses differ too much.
};

// Requests of a rank. The requests of all ranks are combined by a bitwise or of pack(), so only rank 0 sets
// `roll_back_to` and `spike`.
struct Requests {
  bool stop = false;  // A signal requests the run to save and stop.
  bool save = false;  // checkpoint.every_minutes have passed.
  RollBack roll_back_to = RollBack::kNone;
  int64_t spike = 0;  // Step of the loss spike, if roll_back_to is kCheckpoint.

  bool any() const { return stop || save || roll_back_to != RollBack::kNone; }
  // Adds a request to roll back, because of `step` if it is a spike. A comparison takes precedence over a spike. Among
  // several spikes the first one counts, because later steps that were in flight used the weights that it had changed.
  void roll_back(RollBack to, int64_t step);
  uint64_t pack() const;
  static Requests unpack(uint64_t bits);
};

struct Facts {
  Due due = {};
  Requests requests = {};
  // The step was skipped and changed nothing: its loss or gradient norm was not finite, or was a spike.
  bool skipping = false;
  bool over_limit = false;      // More than training.max_skipped_steps steps in a row were skipped.
  bool comparing = false;       // A comparison with bfloat16 is running.
  bool has_checkpoint = false;  // A complete checkpoint exists. Known only if requests.roll_back_to is set.
  // A save on disk would have to wait: for an earlier save, or for staging memory that is still being prepared.
  bool save_waits = false;
  bool save_allowed = true;     // The replicas of the state are equal, as far as is known.
  bool save_postponed = false;  // A save was due at an earlier step and was postponed.
  bool validated = false;       // The due validation was completed.
};

enum class Save : uint8_t {
  kNone,
  kInMemory,
  kOnDisk,
  kFinal,
  kRefused,   // The final save is not allowed, and the run ends with an error.
  kLastGood,  // Saves the state before the steps that were skipped in a row.
};

enum class Next : uint8_t { kContinue, kResumeFp8, kCompare, kToCheckpoint, kToComparison, kStop, kDone, kGiveUp };

enum class Notice : uint8_t {
  kNone,
  kNotSaved,       // The run stops without saving the state that it should roll back from.
  kNoCheckpoint,   // The run continues, because there is no checkpoint to roll back to.
  kSavePostponed,  // A save is due but would have to wait.
};

// Actions of the run after a step, in the order of the members.
struct Actions {
  Notice notice = Notice::kNone;
  Save save = Save::kNone;
  bool save_postponed = false;
  Next next = Next::kContinue;

  friend bool operator==(const Actions&, const Actions&) = default;
};

Actions decide(const Facts& facts);

// Returns whether validation is due and performed. A run that stops, gives up or rolls back skips it.
bool validates(const Facts& facts);

// Returns words for the work that a stop after this step cuts short and that a resumed run does not repeat. Empty if
// the run does not stop, if nothing is cut short, or if the state is not saved.
std::string cut_short(const Facts& facts);

}  // namespace octavo

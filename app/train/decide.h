// Decides what a run does after a step: what it saves, and how it continues.
//
// decide() is pure. It sees no stream, file or rank, and its facts are equal on all ranks, so that all ranks do the
// same. The loop (app/train/training_loop.h) collects the facts, and app/train/run_actions.h performs the actions.
//
// Promises, which tests/app/train/decide_test.cpp checks on drawn sequences of events:
// - A run that continues saves no state while steps are being skipped or a comparison with bfloat16 is running. The
//   final save is made nevertheless.
// - A state that the run was to roll back from is saved only where there is no checkpoint to roll back to.
// - A stop ends the run at the step that sees it.
// - A save that is owed is made as soon as nothing stands against it, unless the run rolls back.
#pragma once

#include <cstdint>

namespace octavo {

// Work that the config asks for after a step. Known when the step is queued.
struct Due {
  bool last = false;         // The step is the last of the run or of its stage.
  bool save = false;         // checkpoint.every is reached, or a save is owed and no other is being written.
  bool memory_save = false;  // checkpoint.in_memory_every is reached, and no earlier save in memory is being written.
  bool validation = false;   // validation.every is reached, or the step is the last.
  bool comparison = false;   // precision.guard.every is reached, and no comparison is running.
  bool fp8_again = false;    // The step is the last of a fallback to bfloat16.

  bool any() const { return last || save || memory_save || validation || comparison || fp8_again; }
};

enum class Back : uint8_t {
  kNone,
  kCheckpoint,  // To the last checkpoint, because of a loss spike.
  kComparison,  // To the state before the comparison with bfloat16, because the losses differ too much.
};

// Wishes of ranks. The wishes of all ranks are combined by a bitwise or of pack(), so only rank 0 sets `back` and
// `spike`.
struct Wishes {
  bool stop = false;  // A signal asks the run to save and stop.
  bool save = false;  // checkpoint.every_minutes have passed.
  Back back = Back::kNone;
  int64_t spike = 0;  // The step whose loss is the spike, for kCheckpoint.

  bool any() const { return stop || save || back != Back::kNone; }
  // Adds the wish to roll back. A comparison's wish takes precedence over that of a spike. The first of several spikes
  // counts: steps that were in flight when it was found continued from weights that it had spoiled.
  void roll_back(Back to, int64_t step);
  uint64_t pack() const;
  static Wishes unpack(uint64_t bits);
};

struct Facts {
  Due due = {};
  Wishes wishes = {};
  bool skipping = false;        // The step changed nothing: its loss or gradient norm was not finite, or a spike.
  bool over_limit = false;      // More than training.max_skipped_steps in a row were skipped.
  bool comparing = false;       // A comparison with bfloat16 is running.
  bool has_checkpoint = false;  // There is a complete checkpoint. Known only if wishes.back is set.
  bool save_pending = false;    // An earlier save is still being written.
  bool save_allowed = true;     // The replicas of the state are equal, as far as known.
  bool owes_save = false;       // A save was due at an earlier step and has not been made.
};

enum class Save : uint8_t {
  kNone,
  kInMemory,
  kOnDisk,
  kFinal,
  kRefused,   // The final save is not allowed, so the run ends with an error.
  kLastGood,  // The state before the steps that were skipped in a row.
};

enum class Next : uint8_t { kContinue, kFp8Again, kCompare, kToCheckpoint, kToComparison, kStop, kDone, kGiveUp };

enum class Notice : uint8_t {
  kNone,
  kNotSaved,      // The run stops without saving the state that it was to roll back from.
  kNoCheckpoint,  // The run continues, as there is no checkpoint to roll back to.
  kSavePending,   // A save is due while the one before is still being written.
};

// Performed in this order.
struct Actions {
  Notice notice = Notice::kNone;
  Save save = Save::kNone;
  bool owes_save = false;
  Next next = Next::kContinue;

  friend bool operator==(const Actions&, const Actions&) = default;
};

Actions decide(const Facts& facts);

// Whether a validation that is due is worth its time: the run does not stop, and stays with the state.
bool validates(const Facts& facts);

}  // namespace octavo

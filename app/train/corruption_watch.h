// What a run does about silent corruption: when it is checked (app/guard/corruption_check.h), what a difference leads
// to (training.on_corruption), and that no state is saved whose copies are known to differ. Does nothing where
// training.check_every is 0.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/guard/corruption_check.h"
#include "app/process/runtime.h"
#include "app/train/run_checkpoints.h"

namespace octavo {

// Every method but say_what_is_checked() is a collective. finish() and may_save() throw AgreedError, with the rank, its
// machine and GPU, what differs and the last checkpoint, where something does and the run is to end.
class CorruptionWatch {
 public:
  // All must outlive the object.
  CorruptionWatch(const Config& config, Runtime& runtime, TrainingState& state, RunCheckpoints& checkpoints);

  // In the log, once a run: where a part of what could be checked is not.
  void say_what_is_checked() const;

  // Queue what the check needs before a step, whose batch was uploaded last, and after it.
  void begin_step(const TrainingStep& step) {
    if (due(step.number)) check_->begin_step(step);
  }
  void end_step(int64_t step) {
    if (due(step)) check_->end_step();
  }
  // Compares the hashes of a due step, whose results are there.
  void finish_step(int64_t step) {
    if (due(step)) take(step, check_->finish());
  }
  // Whether the state behind a step, whose results are there, may be saved; says so if not. Compares the copies, unless
  // finish_step() just has.
  bool may_save(int64_t step);

 private:
  bool due(int64_t step) const { return check_ && check_->due(step); }
  void take(int64_t step, const CorruptionVerdict& verdict);
  // Writes the machines of these ranks, with the reason, where the launchers find them. Returns what came of it.
  std::string exclude(const std::vector<int>& ranks, const std::string& why);

  const Config& config_;
  Runtime& runtime_;
  RunCheckpoints& checkpoints_;
  std::optional<CorruptionCheck> check_;
  bool copies_differ_ = false;  // as the last comparison says
};

}  // namespace octavo

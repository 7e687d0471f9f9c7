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

  // Around a step's own work: before, with its batch uploaded last; behind.
  void begin_step(const TrainingStep& step, const Batch& batch);
  void end_step(int64_t step);
  // Once the results of a step are there: compares, where it was due.
  void finish_step(int64_t step);
  // Whether the state behind a step, whose results are there, may be saved; says so if not. Compares the copies, unless
  // finish_step() just has.
  bool may_save(int64_t step);

 private:
  bool due(int64_t step) const { return check_ && check_->due(step); }
  void take(int64_t step, const CorruptionVerdict& verdict);
  std::string exclude(const std::vector<int>& ranks, const std::string& why);

  const Config& config_;
  Runtime& runtime_;
  RunCheckpoints& checkpoints_;
  std::optional<CorruptionCheck> check_;
  bool copies_differ_ = false;  // as the last comparison says
};

}  // namespace octavo

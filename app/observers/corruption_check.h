// The check for silent corruption: numbers that are wrong without any error, from a defective GPU, core or memory.
// Every training.check_every steps
//
//   what several ranks hold alike   is hashed after the step (app/observers/state_hashes.h);
//   the step's first micro-batch    is computed once before the step and again in it, and its losses and every
//                                   gradient, before it is reduced, are hashed both times. Only where results are equal
//                                   to the bit: on the CPU, and in deterministic runs.
//
// Rank 0 compares the hashes of all ranks (app/observers/corruption_verdict.h).
//
//   due(step): begin_step(...); the step; end_step();   once its results are there: finish()
//
// Everything is queued; the host waits in finish() alone, for work that is done by then. The training is not changed by
// a bit: the first micro-batch of the step overwrites what the additional pass leaves.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/observers/corruption_verdict.h"
#include "app/observers/state_hashes.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

class CorruptionCheck {
 public:
  // A collective. `state`, which has room for the hashes, and `group` must outlive the object. `place` names the host
  // and GPU of this rank in messages.
  CorruptionCheck(const Config& config, TrainingState& state, ProcessGroup& group, const std::string& place);
  CorruptionCheck(const CorruptionCheck&) = delete;
  CorruptionCheck& operator=(const CorruptionCheck&) = delete;

  bool due(int64_t step) const { return step % every_ == 0; }
  // Whether a micro-batch is computed twice.
  bool recomputes() const { return recomputes_; }

  // Queues the additional pass before a due step, whose batch was uploaded last. A collective.
  void begin_step(const TrainingStep& step);
  // Queues the hashes after a due step. At most two steps are pending.
  void end_step();
  // Returns on every rank what the check of a due step found: to be called once for each, in order. A collective; waits
  // for the step.
  CorruptionVerdict finish();
  // Returns on every rank what the state alone says now. A collective; waits for it.
  CorruptionVerdict check_state();

 private:
  // Hashes on their way to the host.
  struct Pending {
    Buffer host;  // [hashes, 2] int32
    Event copied;
  };

  // The hashes of both passes.
  Tensor passes() const { return hashes_.rows(0, 2 * std::ssize(results_)); }
  void hash_results(int64_t pass);

  TrainingState& state_;
  Stream& stream_;
  ProcessGroup& group_;
  int64_t every_;
  bool recomputes_;
  std::vector<HashedStretch> parts_;
  std::vector<std::string> results_;  // names of what a pass leaves
  std::vector<CheckedRank> ranks_;    // on rank 0
  Tensor hashes_;                     // [results of both passes, then parts; 2] int32
  std::vector<Pending> pending_;      // used in turns
  int64_t pushed_ = 0;
  int64_t popped_ = 0;
};

}  // namespace octavo

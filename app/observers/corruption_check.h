// The check for silent corruption: numbers that a defective GPU, core or memory changes without any error. Every
// training.corruption_check_every steps
//
//   state that several ranks hold  is hashed after the step;
//   the step's first micro-batch   is computed twice, once before the step and once in it. Its losses and every
//                                  gradient, before the reduction, are hashed both times. This needs results that are
//                                  equal to the bit, so it is done on the CPU and in deterministic runs only.
//
// Rank 0 compares the hashes of all ranks (app/observers/corruption_verdict.h).
//
// A step is due if due(step) returns true. The caller then calls begin_step() before it queues the step, end_step()
// after that, and finish() once the results of the step are on the host.
//
// All work is queued. Only finish() waits, for work that is usually complete by then. The check does not change the
// training by a bit, because the first micro-batch of the step overwrites the results of the additional pass.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/observers/corruption_verdict.h"
#include "app/run/training_state.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

// A slice of a HashedPart. The hash of the part is the sum of the hashes of its slices (kernels/math/bit_hash.h).
struct HashedSlice {
  HashedPart part;
  Tensor data;
  int64_t begin = 0;  // Offset of the slice in the part, in elements.
};

class CorruptionCheck {
 public:
  // `state` has memory for the hashes. `place` names this rank's host and GPU in messages. A collective.
  // Requires: `state` and `group` outlive the object.
  CorruptionCheck(const Config& config, TrainingState& state, ProcessGroup& group, const std::string& place);
  CorruptionCheck(const CorruptionCheck&) = delete;
  CorruptionCheck& operator=(const CorruptionCheck&) = delete;

  bool due(int64_t step) const { return step % every_ == 0; }
  // Returns whether a micro-batch is computed twice.
  bool recomputes() const { return recomputes_; }

  // Queues the additional pass of the first micro-batch of a due step, before that step. A collective.
  // Requires: the batch of the step was uploaded last.
  void begin_step(const TrainingStep& step);
  // Queues the hashes after a due step.
  // Requires: fewer than two steps are pending.
  void end_step();
  // Waits for the oldest pending step and returns the verdict of its check on every rank. Called once per due step, in
  // order. A collective.
  CorruptionVerdict finish();
  // Hashes the current state, waits, and returns the verdict about the state alone on every rank. A collective.
  // Requires: no step is pending.
  CorruptionVerdict check_state();

 private:
  // Hashes that are copied to the host.
  struct Pending {
    Buffer host;  // [hashes, 2] int32
    Event copied;
  };

  // Returns the hashes of both passes.
  Tensor passes() const { return hashes_.rows(0, 2 * std::ssize(results_)); }
  void hash_results(int64_t pass);

  TrainingState& state_;
  Stream& stream_;
  ProcessGroup& group_;
  int64_t every_;
  bool recomputes_;
  std::vector<HashedSlice> parts_;
  std::vector<std::string> results_;    // Names of the results of a pass.
  std::vector<size_t> result_of_unit_;  // Index in results_ of the gradients of each unit of this rank.
  std::vector<CheckedRank> ranks_;      // Facts about all ranks, on rank 0.
  Tensor hashes_;                       // [results of both passes, then parts; 2] int32
  std::vector<Pending> pending_;        // Host buffers, used in turn.
  int64_t pushed_ = 0;
  int64_t popped_ = 0;
};

}  // namespace octavo

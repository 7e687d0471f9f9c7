// The check for silent corruption: numbers that are wrong without any error, from a defective GPU, core or memory.
// Every training.check_every steps
//
//   what several ranks hold alike   is hashed behind the step (app/guard/state_hashes.h)
//   a micro-batch                   the step's first is computed once more before it, and that of the next
//   data-parallel
//                                   rank as well; losses and every gradient, before it is reduced, are hashed. Only
//                                   where results are the same to the bit: on the CPU, and in deterministic runs.
//
// and the hashes of all ranks are compared on rank 0 (app/guard/corruption_verdict.h).
//
//   due(step): begin_step(...); the step; end_step();   once its results are there: finish()
//
// Queued; the host waits in finish() alone, for what is done by then. The training is not changed by a bit: what the
// additional passes leave, the first micro-batch of the step overwrites.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/guard/corruption_verdict.h"
#include "app/guard/state_hashes.h"
#include "data/loader.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

class CorruptionCheck {
 public:
  // Who this rank is, for messages and for whether its results can be compared.
  struct Identity {
    std::string place;      // host and GPU
    std::string processor;  // ranks of the same one compute the same bits
  };
  // A collective. `state`, which has buffers for it, and `group` must outlive the object.
  CorruptionCheck(const Config& config, TrainingState& state, ProcessGroup& group, const Identity& identity);
  CorruptionCheck(const CorruptionCheck&) = delete;
  CorruptionCheck& operator=(const CorruptionCheck&) = delete;

  bool due(int64_t step) const { return step % every_ == 0; }
  // Whether it computes micro-batches again.
  bool recomputes() const { return recomputes_; }

  // Before a due step, whose batch `batch` was uploaded last. A collective.
  void begin_step(const TrainingStep& step, const Batch& batch);
  // Behind it. At most two steps are pending.
  void end_step();
  // What a due step's check found, on every rank: to be asked once for each, in order. A collective; waits for the
  // step.
  CorruptionVerdict finish();
  // What the state alone says, now. The same.
  CorruptionVerdict check_state();

 private:
  static constexpr int64_t kSlots = 2;
  enum Pass : int64_t { kFirst, kNeighbor, kSecond };

  struct Pending {
    bool recomputed = false;
    Event copied;
  };

  Tensor pass_hashes_of(Pass pass) const;
  Tensor state_hashes() const;
  void observe(Pass pass);
  void hash_gradient(Pass pass, size_t unit);
  Batch exchange(const Batch& batch);
  void push(bool recomputed);
  CorruptionVerdict pop();
  std::string packed(int64_t slot) const;
  RankHashes unpacked(const std::string& packed, size_t parts) const;

  TrainingState& state_;
  Stream& stream_;
  ProcessGroup& group_;
  int64_t every_;
  int64_t micro_batch_tokens_;
  bool recomputes_;
  StateHashes parts_;
  std::vector<std::string> results_;  // the names of what a pass leaves
  std::vector<CheckedRank> ranks_;    // on rank 0
  std::vector<bool> observed_;        // by unit, in this pass
  int64_t hashes_;                    // that are used
  Buffer host_;                       // [kSlots, hashes_, 2] int32
  std::vector<Pending> pending_;      // by slot
  int64_t pushed_ = 0;
  int64_t popped_ = 0;
};

}  // namespace octavo

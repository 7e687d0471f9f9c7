// StateHashes: what a rank of a training run holds that another rank holds as well, part by part, and its hashes:
//
//   over the replicate axis   each unit's shard of the master weights, of the weights that are cast from them and
//   travel,
//                             and of what the optimizer keeps
//   over the tensor axis      the norms' shards, which all its ranks hold alike; each kv head that has copies, of which
//                             a rank has the stretches in its shard
//   over all ranks            the amax history of delayed FP8 scaling
//
// What one rank alone holds has no part.
#pragma once

#include <vector>

#include "app/guard/corruption_verdict.h"
#include "app/run/training_state.h"

namespace octavo {

class StateHashes {
 public:
  // Borrows what `state` holds.
  StateHashes(const ModelConfig& config, TrainingState& state);

  const std::vector<HashedPart>& parts() const { return parts_; }
  // out [parts, 2] int32 = their hashes. Queued on `stream`.
  void queue(const Tensor& out, Stream& stream) const;

 private:
  // A stretch of a part.
  struct Stretch {
    Tensor data;
    int64_t begin = 0;  // of the part
  };

  void add(HashedPart part, Stretch stretch);
  void add_units(const TrainingState& state, const std::vector<OptimizerState>& kept);
  void add_kv_copies(const ModelConfig& config, const TrainingState& state, const std::vector<OptimizerState>& kept);

  std::vector<HashedPart> parts_;
  std::vector<Stretch> stretches_;  // of these
};

}  // namespace octavo

// Finds the first result of a step that is not finite, by computing the step's batch once more and measuring the result
// of every operation of the model. This takes a few times as long as a step, because the host waits for each result.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "app/run/training_state.h"
#include "data/config.h"

namespace octavo {

// The first result of a rank that is not finite.
struct NonfiniteResult {
  // Position of the result in the step, compared lexicographically. The smallest one of all ranks is the step's first.
  std::array<int64_t, 4> order = {};
  // Micro-batch of the result. Empty if the result is of the whole step, such as a sum of gradients over the ranks.
  std::optional<int64_t> micro_batch = {};
  // Describes operation, layer and pass, and the largest magnitudes of the result, the inputs and the weights.
  std::string text = {};
};

// Computes the current batch of `state` once more, up to the gradient norm, with the current weights. Returns the first
// result of this rank that is not finite, or nothing if all are finite. Overwrites losses and gradients, and changes
// nothing that a later step reads. A collective. Waits for the stream.
std::optional<NonfiniteResult> find_nonfinite(TrainingState& state, const TrainingStep& step);

struct MicroBatchSamples {
  SampleRange step;
  int64_t batch_size = 0;
  int64_t data_rank = 0;
  int64_t data_ranks = 1;
  int64_t micro_batch = 0;
  int64_t micro_batch_size = 1;
};
// Returns the samples of one micro-batch of a data-parallel rank. `step` has all samples of a step of `batch_size`
// sequences. Returns `step` itself if it has more than `batch_size` samples, because data.skip then excludes some.
SampleRange samples_of(const MicroBatchSamples& args);

}  // namespace octavo

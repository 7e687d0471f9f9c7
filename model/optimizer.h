// AdamW over this rank's shard of the parameters, with the moments it keeps: one fused update per stretch of them that
// is treated alike, the global gradient norm and the clipping on the device.
#pragma once

#include <vector>

#include "model/optimizer_config.h"
#include "model/sharded_parameters.h"

namespace octavo {

// The ranks that together hold one copy of the parameters; null: one.
struct ParameterRanks {
  Communicator* shard = nullptr;
  Communicator* tensor = nullptr;
};

// What is kept of every parameter from step to step, besides the parameter.
struct OptimizerState {
  const char* name;  // in plans, and in checkpoints before the parameter's
  Tensor shards;     // [elements of all shards] state_dtype, in the order of shard buffers
};

class Optimizer {
 public:
  // `parameters` and `amaxes` must outlive the optimizer; amaxes is null without FP8. Moments start at zero.
  Optimizer(const OptimizerConfig& config, ShardedParameters& parameters, AmaxTable* amaxes, Arena& arena);

  // Of a step, first: waits for the gradients and computes grad_sum_of_squares() over `ranks`. Queued on `stream`.
  void measure_gradients(const ParameterRanks& ranks, Stream& stream);
  // Then step `step`, from 1, at learning rate `lr`: clips, and updates the master weights, the moments, the weights
  // that travel (but those in FP8, see ShardedParameters::publish) and the weights' amaxes of per-tensor recipes.
  // Nothing but those amaxes where `skip` (optional, kernels/skip_update.h) says so. Queued on `stream`.
  void step(int64_t step, double lr, const Tensor& skip, Stream& stream);

  // All that is to be saved and restored.
  const std::vector<OptimizerState>& states() const { return states_; }
  // [1] float32 on the device: of the last step's gradients, before clipping.
  const Tensor& grad_sum_of_squares() const { return grad_sum_of_squares_; }

 private:
  enum State : size_t { kExpAvg, kExpAvgSq };

  // Neighbours in shard buffers, padding included.
  struct Segment {
    int64_t begin;
    int64_t end;
    bool decayed;
    Tensor weight;  // where the rounded weights go; undefined where the master weights are read, or FP8 casts of them
    Tensor amax;    // of a weight of a per-tensor recipe
  };

  void find_segments();

  OptimizerConfig config_;
  ShardedParameters* parameters_;
  AmaxTable* amaxes_;
  std::vector<Segment> segments_;
  std::vector<Tensor> counted_gradients_;  // of the norm
  std::vector<OptimizerState> states_;     // in the order of State
  Tensor grad_sum_of_squares_;
};

}  // namespace octavo

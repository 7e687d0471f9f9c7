// AdamW over this rank's shard of the parameters, with the moments it keeps: one fused update per stretch of them that
// is treated alike, the global gradient norm and the clipping on the device.
#pragma once

#include <vector>

#include "model/schedule.h"
#include "model/sharded_parameters.h"

namespace octavo {

// The ranks that together hold one copy of the parameters; null: one.
struct ParameterRanks {
  Communicator* shard = nullptr;
  Communicator* tensor = nullptr;
};

class Optimizer {
 public:
  // `parameters` and `amaxes` must outlive the optimizer; amaxes is null without FP8. Moments start at zero.
  Optimizer(const OptimizerConfig& config, ShardedParameters& parameters, AmaxTable* amaxes, Arena& arena);

  // One step, from 1, at learning rate `lr`. Queued on `stream`: waits for the gradients, computes
  // grad_sum_of_squares() over `ranks`, clips, and updates the master weights, the moments, the weights that travel
  // (but those in FP8, see ShardedParameters::publish) and the weights' amaxes of per-tensor recipes.
  void step(int64_t step, double lr, const ParameterRanks& ranks, Stream& stream);

  const Tensor& exp_avg() const { return exp_avg_; }        // [elements of all shards], state_dtype
  const Tensor& exp_avg_sq() const { return exp_avg_sq_; }  // [elements of all shards], state_dtype
  // [1] float32 on the device: of the last step's gradients, before clipping.
  const Tensor& grad_sum_of_squares() const { return grad_sum_of_squares_; }

 private:
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
  Tensor exp_avg_;
  Tensor exp_avg_sq_;
  Tensor grad_sum_of_squares_;
};

}  // namespace octavo

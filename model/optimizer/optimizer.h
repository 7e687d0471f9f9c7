// The optimizer of a run on this rank's shard of the parameters: the states and updates of the row of kOptimizers that
// the config names and of AdamW, the global gradient norm, clipping on the device, and the moving average of the
// weights.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "model/optimizer/parameter_update.h"

namespace octavo {

// Returns the master weights as a state, so that code that iterates over states can treat them alike.
OptimizerState master_state(const ShardedParameters& parameters);

class Optimizer {
 public:
  // Borrows `parameters` and `amaxes`; amaxes is null without FP8.
  Optimizer(const OptimizerConfig& config, ShardedParameters& parameters, AmaxTable* amaxes, Arena& arena);

  // Returns the bytes that a stream's workspace must have.
  static int64_t workspace_bytes(const OptimizerConfig& config, const ParameterLayout& layout, DType compute,
                                 const Stream& stream);

  // Waits for the gradients and computes grad_sum_of_squares() over the ranks. A step starts with this call. Queued on
  // `stream`.
  void measure_gradients(Stream& stream);
  // Runs step `step`, counted from 1, at learning rate `lr`. Clips the gradients and updates the master weights, the
  // states, the weights in the compute dtype (ShardedParameters::publish casts those in FP8), and the amaxes of weights
  // under per-tensor recipes. If `skip` says so (optional, kernels/optimizer/skip_update.h), only the amaxes change.
  // Queued on `stream`.
  void step(int64_t step, double lr, const Tensor& skip, Stream& stream);

  // Runs every matmul of a step once, so that algorithms are chosen before the first step. Changes no state. Queued on
  // `stream`.
  void warm_up(Stream& stream);

  // Sets one state, or all, to the values that a run begins with. The master weights must be set before. Queued on
  // `stream`.
  void begin(const OptimizerState& state, Stream& stream) const;
  void begin(Stream& stream) const;

  // Returns all states that a checkpoint contains besides the master weights.
  const std::vector<OptimizerState>& states() const { return states_; }
  OptimizerType type() const { return config_.type; }
  // Returns [1] float32 on the device, the sum of squares of the last step's gradients before clipping.
  const Tensor& grad_sum_of_squares() const { return grad_sum_of_squares_; }

 private:
  // Allocates a state of the units for which `has` returns true.
  OptimizerState make_state(const char* name, DType dtype, Arena& arena,
                            const std::function<bool(const ParameterUnit&)>& has) const;

  OptimizerConfig config_;
  ShardedParameters* parameters_;
  AmaxTable* amaxes_;
  std::vector<Tensor> counted_gradients_;  // gradients that the norm sums over
  std::vector<OptimizerState> states_;     // the average of the weights, if there is one, is the last
  std::vector<std::unique_ptr<ParameterUpdate>> updates_;
  Tensor grad_sum_of_squares_;
};

}  // namespace octavo

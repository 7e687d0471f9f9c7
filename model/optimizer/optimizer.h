// The optimizer of a run on this rank's shard of the parameters. It has the states and updates of the configured row of
// kOptimizers, and of AdamW for parameters that this row does not update. It also computes the global gradient norm,
// clips on the device, and keeps the moving average of the weights.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/optimizer/optimizer_config.h"
#include "model/parameters/sharded_parameters.h"

namespace octavo {

// A state with one value per element of the parameters of some units, such as a moment. It lasts from step to step.
struct OptimizerState {
  const char* name;                         // in plans, and in checkpoints before the parameter's name
  Tensor shards;                            // this rank's shards of the units, in the order of shard buffers
  const char* codes_relative_to = nullptr;  // as in OptimizerStateTraits
  bool begins_as_weights = false;           // whether the state starts as the master weights instead of zeros
  // The offset of each unit in shard buffers minus its offset in `shards`. A unit without this state has no value.
  std::vector<std::optional<int64_t>> shift = {};

  bool has(size_t unit) const { return shift[unit].has_value(); }
  // Returns the part of this state that belongs to elements [begin, end) of shard buffers.
  // Requires: the elements are in `unit` and in units after it that have the same shift.
  Tensor slice(size_t unit, int64_t begin, int64_t end) const {
    return shards.rows(begin - *shift[unit], end - *shift[unit]);
  }
  // Return the slice of this state that belongs to a unit or a parameter.
  // Requires: has(unit).
  Tensor of(const ShardedParameters& parameters, size_t unit) const {
    return slice(unit, parameters.unit_begin(unit), parameters.unit_begin(unit + 1));
  }
  Tensor of(const ParameterSlice& parameter) const {
    return slice(parameter.spec->unit, parameter.offset, parameter.offset + parameter.end - parameter.begin);
  }
};

struct UpdateOptions {
  const OptimizerConfig& config;
  ShardedParameters& parameters;           // borrowed by the update
  AmaxTable* amaxes = nullptr;             // borrowed by the update; null without FP8
  std::span<const OptimizerState> states;  // in the order of OptimizerTraits::states
  Arena& arena;
};

struct UpdateStep {
  int64_t step = 1;  // counted from 1
  double lr = 0;
  Tensor grad_sum_of_squares;  // [1] float32
  Tensor skip;                 // optional [1] float32 (kernels/optimizer/skip_update.h)
};

// The update of parameters by one row of kOptimizers.
class ParameterUpdate {
 public:
  virtual ~ParameterUpdate() = default;
  // Updates the parameters that the states belong to. Queued on `stream`.
  virtual void step(const UpdateStep& step, Stream& stream) = 0;
  // Runs every matmul once, so that algorithms are chosen before the first step. Changes no state. Queued on `stream`.
  virtual void warm_up(Stream& /*stream*/) {}
};

// Returns the master weights as a state, so that code that iterates over states can treat them alike.
OptimizerState master_state(const ShardedParameters& parameters);

class Optimizer {
 public:
  // Borrows `parameters` and `amaxes`; amaxes is null without FP8.
  Optimizer(const OptimizerConfig& config, ShardedParameters& parameters, AmaxTable* amaxes, Arena& arena);

  // Returns the bytes that the workspace of a stream must have for the updates.
  static int64_t workspace_bytes(const OptimizerConfig& config, const ParameterLayout& layout, DType compute,
                                 const Stream& stream);

  // Waits for the gradients and computes grad_sum_of_squares() over the ranks. A step starts with this call. Queued on
  // `stream`.
  void measure_gradients(Stream& stream);
  // Runs step `step`, counted from 1, at learning rate `lr`. Clips the gradients and updates the master weights, the
  // states, the weights in the compute dtype (ShardedParameters::cast_fp8_weights casts those in FP8), and the amaxes
  // of weights under per-tensor recipes. If `skip` says so (optional, kernels/optimizer/skip_update.h), only the amaxes
  // change. Queued on `stream`.
  void step(int64_t step, double lr, const Tensor& skip, Stream& stream);

  // Runs every matmul of a step once, so that algorithms are chosen before the first step. Changes no state. Queued on
  // `stream`.
  void warm_up(Stream& stream);

  // Sets one state, or all, to the values that a run begins with. Queued on `stream`.
  // Requires: the master weights have been set.
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

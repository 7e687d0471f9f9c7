// The update of parameters by one row of kOptimizers, and the states that it keeps.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "model/optimizer/optimizer_config.h"
#include "model/parameters/sharded_parameters.h"

namespace octavo {

// A number per parameter of some units that is kept from step to step, such as a moment.
struct OptimizerState {
  const char* name;                         // in plans, and in checkpoints before the parameter's name
  Tensor shards;                            // this rank's shards of the units, in the order of shard buffers
  const char* codes_relative_to = nullptr;  // as in OptimizerStateTraits
  bool begins_as_weights = false;           // whether the state starts as the master weights instead of zeros
  // The offset of each unit in shard buffers minus its offset in `shards`. A unit without this state has no value.
  std::vector<std::optional<int64_t>> shift = {};

  bool has(size_t unit) const { return shift[unit].has_value(); }
  // Returns elements [begin, end) of shard buffers, which belong to `unit` and to units after it with the same shift.
  Tensor slice(size_t unit, int64_t begin, int64_t end) const {
    return shards.rows(begin - *shift[unit], end - *shift[unit]);
  }
  // Return the slice of this state that belongs to a unit or a piece. Require has(unit).
  Tensor of(const ShardedParameters& parameters, size_t unit) const {
    return slice(unit, parameters.unit_begin(unit), parameters.unit_begin(unit + 1));
  }
  Tensor of(const ParameterPiece& piece) const {
    return slice(piece.spec->unit, piece.offset, piece.offset + piece.end - piece.begin);
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

class ParameterUpdate {
 public:
  virtual ~ParameterUpdate() = default;
  // Updates the parameters that the states belong to. Queued on `stream`.
  virtual void step(const UpdateStep& step, Stream& stream) = 0;
  // Runs every matmul once, so that algorithms are chosen before the first step. Changes no state. Queued on `stream`.
  virtual void warm_up(Stream& /*stream*/) {}
};

}  // namespace octavo

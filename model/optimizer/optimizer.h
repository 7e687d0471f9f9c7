// AdamW over this rank's shard of the parameters, or of what Muon (model/optimizer/muon.h) does not update, with the
// states it keeps: one fused update per stretch of them that is treated alike, the global gradient norm and the
// clipping on the device; and the moving average of the weights.
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "model/optimizer/muon.h"
#include "model/optimizer/optimizer_config.h"
#include "model/parameters/sharded_parameters.h"

namespace octavo {

// What is kept of the parameters of some units from step to step, besides the parameters.
struct OptimizerState {
  const char* name;                // in plans, and in checkpoints before the parameter's
  Tensor shards;                   // of these units, one behind the other in the order of shard buffers
  bool begins_as_weights = false;  // the master weights, where a run begins; else zero
  // Of each unit, how far before its place in shard buffers it lies in `shards`; none: it is not kept.
  std::vector<std::optional<int64_t>> shift = {};

  bool has(size_t unit) const { return shift[unit].has_value(); }
  // Elements [begin, end) of shard buffers, which are of the unit and those behind it that have the same shift.
  Tensor slice(size_t unit, int64_t begin, int64_t end) const {
    return shards.rows(begin - *shift[unit], end - *shift[unit]);
  }
  // What of it is of a unit or piece that has it.
  Tensor of(const ShardedParameters& parameters, size_t unit) const {
    return slice(unit, parameters.unit_begin(unit), parameters.unit_begin(unit + 1));
  }
  Tensor of(const ParameterPiece& piece) const {
    return slice(piece.spec->unit, piece.offset, piece.offset + piece.end - piece.begin);
  }
};

// The master weights, looked at as such a state.
OptimizerState master_state(const ShardedParameters& parameters);

class Optimizer {
 public:
  // `parameters` and `amaxes` must outlive the optimizer; amaxes is null without FP8.
  Optimizer(const OptimizerConfig& config, ShardedParameters& parameters, AmaxTable* amaxes, Arena& arena);

  // What it asks of a stream's workspace.
  static int64_t workspace_bytes(const OptimizerConfig& config, const ParameterLayout& layout, DType compute,
                                 const Stream& stream);

  // Of a step, first: waits for the gradients and computes grad_sum_of_squares() over the ranks. Queued on `stream`.
  void measure_gradients(Stream& stream);
  // Then step `step`, from 1, at learning rate `lr`: clips, and updates the master weights, the moments, the weights
  // that travel (but those in FP8, see ShardedParameters::publish), the weights' amaxes of per-tensor recipes and the
  // average of the master weights. Nothing but those amaxes where `skip` (optional, kernels/optimizer/skip_update.h)
  // says so. Queued on `stream`.
  void step(int64_t step, double lr, const Tensor& skip, Stream& stream);

  // So that algorithms are chosen before the first step. What is kept stays. Queued on `stream`.
  void warm_up(Stream& stream);

  // Sets a state, or all, to what a run begins with, behind the master weights. Queued on `stream`.
  void begin(const OptimizerState& state, Stream& stream) const;
  void begin(Stream& stream) const;

  // All that is to be saved and restored.
  const std::vector<OptimizerState>& states() const { return states_; }
  OptimizerType type() const { return config_.type; }
  // [1] float32 on the device: of the last step's gradients, before clipping.
  const Tensor& grad_sum_of_squares() const { return grad_sum_of_squares_; }

 private:
  // Neighbours in shard buffers, padding included.
  struct Segment {
    int64_t begin;
    int64_t end;
    bool decayed;
    Tensor exp_avg;
    Tensor exp_avg_sq;
    Tensor weight;  // where the rounded weights go; undefined where the master weights are read, or FP8 casts of them
    Tensor amax;    // of a weight of a per-tensor recipe
    MatrixRange range;  // the places in the flat order of a rank that has all of every layer
  };

  // A state of the units that `has` says.
  OptimizerState make_state(const char* name, DType dtype, Arena& arena,
                            const std::function<bool(const ParameterUnit&)>& has) const;
  const OptimizerState& state(std::string_view name) const;
  void find_segments();
  void update_with_adamw(int64_t step, double lr, const Tensor& skip, Stream& stream);

  OptimizerConfig config_;
  ShardedParameters* parameters_;
  AmaxTable* amaxes_;
  std::optional<Muon> muon_;
  std::vector<Segment> segments_;
  std::vector<Tensor> counted_gradients_;  // of the norm
  std::vector<OptimizerState> states_;
  Tensor grad_sum_of_squares_;
};

}  // namespace octavo

// AmaxTable: the amaxes of which FP8 scales per tensor are made. Each linear has three: of its input, of its weight,
// and of the gradient of its output.
//
//   tensorwise  The scale comes from current(), which the producer of the tensor has filled in this micro-batch.
//   delayed     The scale comes from the largest current() of the last amax_history steps over all micro-batches and
//               ranks. Until every tensor has an amax above zero in the history, all scales are made as in tensorwise,
//               and the history is reset to zero. This happens before the first step, as long as steps are skipped or
//               have no gradients, and while weights are zero. Linears whose input and output gradient are both zero
//               are ignored in this condition, and so are linears that are not in FP8.
//
// All slots lie contiguously in memory, [kKinds, linears], so clearing them, reducing them over ranks and updating the
// history are one op each. Each micro-batch in flight has its own slots. The slots of number 0 also hold the amaxes of
// the weights and, while scales come from the history, those of all micro-batches.
#pragma once

#include <span>
#include <vector>

#include "core/arena.h"
#include "core/stream.h"
#include "model/architecture/precision.h"
#include "parallel/communicator.h"

namespace octavo {

class AmaxTable {
 public:
  enum Kind : int64_t { kInput, kOutputGradient, kWeight, kKinds };

  // `in_flight` is the maximum number of micro-batches that have activations at a time, summed over the chunks.
  AmaxTable(const PrecisionConfig& config, int64_t linears, Arena& arena, int64_t in_flight = 1);

  // Returns [1] float32, the amax of a tensor of the micro-batch in flight with number `in_flight`. Producers write
  // max(itself, amax).
  Tensor current(int64_t linear, Kind kind, int64_t in_flight = 0) const {
    return slot(current_[static_cast<size_t>(in_flight)], linear, kind);
  }
  // Returns [1] float32, the maximum factor by which the output gradient of a linear can exceed the gradient that it is
  // computed from. The forward op (swiglu_forward) writes max(itself, factor). Undefined if delayed().
  Tensor gradient_bound_factor(int64_t linear, int64_t in_flight) const {
    return gradient_bound_factors_[static_cast<size_t>(in_flight)].rows(linear, linear + 1);
  }
  // Returns [1] float32, the amax of which the scale is made while uses_history().
  Tensor scaling(int64_t linear, Kind kind) const { return slot(scaling_, linear, kind); }
  bool delayed() const { return history_.defined(); }

  // Clears the amaxes of the weights. Called before the weights change.
  void begin_weights(Stream& stream);
  // Returns the amaxes of all weights, [linears] float32, which the caller reduces over the ranks.
  Tensor weights() const { return current_[0].rows(kWeight * linears_, kKinds * linears_); }
  // Computes weight_scaling() and weight_scale_inv().
  // Requires: weights() has been reduced over the ranks.
  void compute_weight_scales(Stream& stream);
  // Return [1] float32: the amax of which the scale of a weight is made, and the inverse of this scale in e4m3.
  Tensor weight_scaling(int64_t linear) const { return weight_scaling_.rows(linear, linear + 1); }
  Tensor weight_scale_inv(int64_t linear) const {
    return weight_scale_inv_.rows(linear, linear + 1).view({kScaleStride}).rows(0, 1);
  }

  // Clears the amaxes of inputs and output gradients, and the gradient bound factors, of the micro-batch in flight with
  // number `in_flight`. `first` says whether it is the step's first micro-batch with this number. If not, delayed
  // scaling keeps the amaxes while uses_history(), and otherwise adds them to the history before it clears them.
  void begin_micro_batch(bool first, int64_t in_flight, Stream& stream);
  // Called after the last micro-batch. Delayed scaling adds the amaxes of this step, reduced over the ranks, to the
  // history, unless `skip` (optional, kernels/optimizer/skip_update.h) says that the step is skipped. If
  // uses_history() is false, waits for the stream.
  void end_step(const Tensor& skip, Communicator* ranks, Stream& stream);
  // Called after micro-batches that belong to no step, such as those of a warm-up. Keeps them out of the history.
  void forget_micro_batches(Stream& stream);
  // Returns whether scales come from the history. They are then known before the tensors, so that a tensor can be
  // measured while it is cast.
  bool uses_history() const { return uses_history_; }

  // Returns the history [amax_history, slots] float32, for checkpoints. Undefined unless delayed().
  const Tensor& history() const { return history_; }
  // Sets the number of steps of the run so far, which decides which row of the history the next step replaces.
  void set_steps_done(int64_t steps);
  // Makes the scales of the next step after the caller has set the history, to zeros or from a checkpoint. Waits for
  // the stream.
  void restore(Stream& stream);

 private:
  static constexpr int64_t kScaleStride = 4;  // cuBLASLt requires scales at multiples of 16 bytes.

  Tensor slot(const Tensor& table, int64_t linear, Kind kind) const;

  void collect(const Tensor& current, Stream& stream);
  void take_back_row(Stream& stream);
  // Sets uses_history_ = knows_all(history_), and zeroes a history that does not know all. Waits for the stream.
  void find_history(Stream& stream);
  bool knows_all(std::span<const float> history) const;

  int64_t linears_;
  std::vector<Tensor> current_;  // [slots] float32, by number of the micro-batch in flight
  // [linears] float32, by number of the micro-batch in flight. Empty if delayed().
  std::vector<Tensor> gradient_bound_factors_;
  Tensor scaling_;
  Tensor history_;
  Tensor weight_scaling_;    // [linears] float32
  Tensor weight_scale_inv_;  // [linears, kScaleStride] float32
  float factor_ = 1;         // 2^margin
  bool uses_history_ = false;
  int64_t row_ = 0;  // Row of the history for this step.
};

}  // namespace octavo

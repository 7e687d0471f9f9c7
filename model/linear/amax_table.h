// AmaxTable: the amaxes that per-tensor FP8 scales are made of, three for each linear: its input, its weight, and the
// gradient of its output.
//
//   tensorwise  a tensor's scale comes from current(), filled by the kernel that made the tensor, this micro-batch
//   delayed     it comes from the largest current() of the last amax_history steps, each over all micro-batches and
//               ranks; until the history holds a gradient, from current(), as tensorwise. A history without gradients
//               (no step yet, or none that counted) is all zeros.
//
// All slots are neighbours in memory, [kKinds, linears], so that clearing, reducing over ranks and rolling the history
// are one op each. Each micro-batch in flight has slots of its own; number 0 has those of the weights and, while scales
// come from the history, those of all micro-batches.
#pragma once

#include <vector>

#include "core/arena.h"
#include "core/stream.h"
#include "model/architecture/precision.h"
#include "parallel/communicator.h"

namespace octavo {

class AmaxTable {
 public:
  enum Kind : int64_t { kInput, kOutputGradient, kWeight, kKinds };

  // `in_flight`: the most micro-batches whose activations exist at a time.
  AmaxTable(const PrecisionConfig& config, int64_t linears, Arena& arena, int64_t in_flight = 1);

  // [1] float32: what the tensors of micro-batch number `in_flight` reached so far. Producers do = max(itself, amax).
  Tensor current(int64_t linear, Kind kind, int64_t in_flight = 0) const {
    return slot(current_[static_cast<size_t>(in_flight)], linear, kind);
  }
  // [1] float32: what the scale is made of, while it comes from the history.
  Tensor scaling(int64_t linear, Kind kind) const { return slot(scaling_, linear, kind); }
  bool delayed() const { return history_.defined(); }

  // Forgets the weights' amaxes, before they change.
  void begin_weights(Stream& stream);
  // The amaxes of all weights, [linears] float32, for their reduction over the ranks.
  Tensor weights() const { return current_[0].rows(kWeight * linears_, kKinds * linears_); }
  // Once those are complete: settles weight_scaling() and weight_scale_inv() until the next call.
  void settle_weights(Stream& stream);
  // [1] float32: what a weight's scale is made of, and the inverse of that scale in e4m3.
  Tensor weight_scaling(int64_t linear) const { return weight_scaling_.rows(linear, linear + 1); }
  Tensor weight_scale_inv(int64_t linear) const {
    return weight_scale_inv_.rows(linear, linear + 1).view({kScaleStride}).rows(0, 1);
  }

  // Forgets those of inputs and output gradients of micro-batch number `in_flight`, as far as scales are made of them;
  // delayed scaling takes them into the history first unless this is the step's `first` micro-batch of that number.
  void begin_micro_batch(bool first, int64_t in_flight, Stream& stream);
  // After the last micro-batch: delayed scaling takes this step's amaxes, the largest of all ranks, into the history,
  // unless `skip` (optional, kernels/optimizer/skip_update.h) says that the step is skipped. Waits for the stream as
  // long as the history has no gradient.
  void end_step(const Tensor& skip, Communicator* ranks, Stream& stream);
  // After micro-batches that are no step's, as those of a warm-up: nothing of them gets into the history.
  void forget_micro_batches(Stream& stream);
  // Whether scaling() is known before the tensors are, so that a tensor can be measured while it is cast.
  bool uses_history() const { return uses_history_; }

  // The history [amax_history, slots] float32, for checkpoints; undefined unless delayed.
  const Tensor& history() const { return history_; }
  // Of the whole run, which decides on the row of the history that the next step replaces.
  void set_steps_done(int64_t steps);
  // Makes the scales of the next step after the history was set, to that of a checkpoint or to zeros. Waits for the
  // stream.
  void restore(Stream& stream);

 private:
  static constexpr int64_t kScaleStride = 4;  // cuBLASLt takes scales at multiples of 16 bytes

  Tensor slot(const Tensor& table, int64_t linear, Kind kind) const;

  void collect(const Tensor& current, Stream& stream);
  void take_back_row(Stream& stream);
  // Sets uses_history_. Waits for the stream.
  void find_history(Stream& stream);

  int64_t linears_;
  std::vector<Tensor> current_;  // [slots] float32, by micro-batch in flight
  Tensor scaling_;
  Tensor history_;
  Tensor weight_scaling_;    // [linears] float32
  Tensor weight_scale_inv_;  // [linears, kScaleStride] float32
  float factor_ = 1;         // 2^margin
  bool uses_history_ = false;
  int64_t row_ = 0;  // of the history, this step's
};

}  // namespace octavo

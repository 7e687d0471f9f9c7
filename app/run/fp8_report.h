// Statistics of a step's FP8 casts, every logging.fp8_stats_every steps: taken by the model, copied to the host behind
// the step, written to metrics.jsonl and looked over for a warning (docs/fp8.md says how to read them).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "model/fp8_stats_table.h"

namespace octavo {

// One tensor of a linear in a step.
struct Fp8TensorReport {
  int64_t layer = 0;
  const char* linear = "";  // qkv, o, gate_up, down
  const char* tensor = "";  // input, output_gradient, weight
  bool per_tensor = false;  // one scale a tensor
  Fp8TensorStats stats;

  double saturated_share() const;  // of all elements
  double flushed_share() const;    // of those that are not zero
};

// Saturation loses of the largest values, always towards zero. Of a normal distribution 0.1% lie beyond 3.3 deviations,
// and its largest of a million values at 5, so the scale was then made for a tensor of two thirds the size: a history
// that keeps up with its tensor does not come to that.
inline constexpr double kMostSaturated = 1e-3;
// The fifth of a normal distribution nearest to zero holds 0.4% of its sum of squares: without it the tensor is 6.5% of
// its norm away from itself, more than twice as far as rounding to e4m3 takes it (2.6%).
inline constexpr double kMostFlushed = 0.2;

// One line that counts the tensors beyond these limits, or whose amax is zero or not finite, and names the worst; none
// when all are well.
std::optional<std::string> fp8_warning(int64_t step, std::span<const Fp8TensorReport> tensors);

// Whether the config asks for statistics and has linears to take them of.
bool reports_fp8(const Config& config);

// The measured steps of a run. begin() and end() enclose the work of a step that is due; as in StepResults, at most two
// steps are pending.
class Fp8Reporter {
 public:
  // `table` is borrowed.
  Fp8Reporter(const Config& config, Fp8StatsTable& table, Device device);

  bool due(int64_t step) const { return step % every_ == 0; }
  void begin(Stream& stream) { table_.begin(stream); }
  // A collective. Queues the sums over the ranks and their copy to the host.
  void end(Communicator& communicator, Stream& stream);
  // The oldest pending step's, by layer, linear and tensor. What end() queued must be done.
  std::vector<Fp8TensorReport> pop();

 private:
  static constexpr int64_t kSlots = 2;

  int64_t every_;
  bool per_tensor_;
  std::vector<LinearSpec> linears_;  // of a block
  Fp8StatsTable& table_;
  Buffer host_;  // [kSlots, table's values] float32
  int64_t pushed_ = 0;
  int64_t popped_ = 0;
};

}  // namespace octavo

#include "app/run/fp8_report.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/format.h"
#include "model/block.h"

namespace octavo {

namespace {

const char* tensor_name(AmaxTable::Kind kind) {
  switch (kind) {
    case AmaxTable::kInput:
      return "input";
    case AmaxTable::kOutputGradient:
      return "output_gradient";
    default:
      return "weight";
  }
}

double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

// Above 1: beyond a limit. What is broken comes before what is zero, and that before what is cast badly.
double badness(const Fp8TensorReport& report) {
  if (!std::isfinite(report.stats.amax)) return std::numeric_limits<double>::infinity();
  if (report.stats.amax == 0) return std::numeric_limits<double>::max();
  return std::max(report.saturated_share() / kMostSaturated, report.flushed_share() / kMostFlushed);
}

}  // namespace

double Fp8TensorReport::saturated_share() const { return share(stats.saturated, stats.elements); }

double Fp8TensorReport::flushed_share() const { return share(stats.flushed, stats.non_zero); }

std::optional<std::string> fp8_warning(int64_t step, std::span<const Fp8TensorReport> tensors) {
  const auto worse = [](const Fp8TensorReport& a, const Fp8TensorReport& b) { return badness(a) < badness(b); };
  const auto worst = std::max_element(tensors.begin(), tensors.end(), worse);
  if (worst == tensors.end() || badness(*worst) <= 1) return std::nullopt;
  const auto bad = std::count_if(tensors.begin(), tensors.end(), [](const auto& t) { return badness(t) > 1; });
  return fmt::format(
      "step {}: {} of {} FP8 tensors do not fit their format, the worst the {} of {} in layer {}: {:.2f}% saturated, "
      "{:.1f}% flushed to zero, amax {:.3g}",
      step, bad, tensors.size(), worst->tensor, worst->linear, worst->layer, 100 * worst->saturated_share(),
      100 * worst->flushed_share(), unsigned_nan(worst->stats.amax));
}

bool reports_fp8(const Config& config) {
  const PrecisionConfig& precision = config.precision;
  const bool any = precision.bf16_first_layers + precision.bf16_last_layers < config.model.num_layers;
  return config.logging.fp8_stats_every > 0 && is_fp8(precision.linear) && any;
}

Fp8Reporter::Fp8Reporter(const Config& config, Fp8StatsTable& table, Device device)
    : every_(config.logging.fp8_stats_every),
      per_tensor_(needs_amax(config.precision.linear)),
      linears_(block_linears(config.model)),
      table_(table),
      host_(Buffer::host(device, kSlots * table.values().bytes())) {}

void Fp8Reporter::end(Communicator& communicator, Stream& stream) {
  CHECK(pushed_ - popped_ < kSlots, "{} steps' FP8 statistics are pending", pushed_ - popped_);
  table_.end(communicator, stream);
  const int64_t slot = pushed_++ % kSlots;
  stream.copy(static_cast<float*>(host_.data()) + slot * table_.values().numel(), table_.values().raw(),
              table_.values().bytes());
}

std::vector<Fp8TensorReport> Fp8Reporter::pop() {
  CHECK(popped_ < pushed_, "no FP8 statistics are pending");
  const int64_t slot = popped_++ % kSlots;
  const int64_t count = table_.values().numel();
  const std::span<const float> values(static_cast<const float*>(host_.data()) + slot * count,
                                      static_cast<size_t>(count));
  const auto per_block = static_cast<int64_t>(linears_.size());
  std::vector<Fp8TensorReport> reports;
  for (int64_t linear = 0; linear < table_.linears(); ++linear) {
    for (const AmaxTable::Kind kind : {AmaxTable::kInput, AmaxTable::kWeight, AmaxTable::kOutputGradient}) {
      const Fp8TensorStats stats = table_.tensor(values, linear, kind);
      if (stats.elements == 0) continue;
      reports.push_back({.layer = linear / per_block,
                         .linear = linears_[static_cast<size_t>(linear % per_block)].names.forward,
                         .tensor = tensor_name(kind),
                         .per_tensor = per_tensor_,
                         .stats = stats});
    }
  }
  return reports;
}

}  // namespace octavo

#include "app/run/fp8_report.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/format.h"
#include "model/architecture/layer_spec.h"

namespace octavo {

namespace {

double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

// Returns how bad a tensor is. A result above 1 means that the tensor exceeds a limit. An amax that is not finite is
// worse than an amax of zero, which is worse than any saturation or flushing.
double badness(const Fp8TensorReport& report) {
  if (!std::isfinite(report.stats.amax)) return std::numeric_limits<double>::infinity();
  if (report.stats.amax == 0) return std::numeric_limits<double>::max();
  return std::max(report.saturated_share() / kMaxSaturated, report.flushed_share() / kMaxFlushed);
}

}  // namespace

double Fp8TensorReport::saturated_share() const { return share(stats.saturated, stats.elements); }

double Fp8TensorReport::flushed_share() const { return share(stats.flushed, stats.non_zero); }

std::optional<std::string> fp8_warning(int64_t step, std::span<const Fp8TensorReport> tensors) {
  const auto worst = std::ranges::max_element(tensors, {}, badness);
  if (worst == tensors.end() || badness(*worst) <= 1) return std::nullopt;
  const auto bad = std::ranges::count_if(tensors, [](const auto& t) { return badness(t) > 1; });
  return fmt::format(
      "step {}: {} of {} FP8 tensors do not fit their format; the worst is the {} of {} in layer {}: {:.2f}% "
      "saturated, {:.1f}% flushed to zero, amax {:.3g}",
      step, bad, tensors.size(), worst->tensor, worst->linear, worst->layer, 100 * worst->saturated_share(),
      100 * worst->flushed_share(), unsigned_nan(worst->stats.amax));
}

bool reports_fp8(const Config& config) {
  const auto layers = layer_specs(config.model, config.precision, {.mode = ActivationCheckpointing::Mode::kNone});
  return config.logging.fp8_stats_every > 0 &&
         std::ranges::any_of(layers, [](const LayerSpec& layer) { return is_fp8(layer.recipe); });
}

}  // namespace octavo

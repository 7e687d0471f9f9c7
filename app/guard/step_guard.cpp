#include "app/guard/step_guard.h"

#include <cmath>
#include <limits>

namespace octavo {

namespace {

// Of their means, what counts as the least deviation (Spikes): losses hardly move from step to step, norms and times
// do.
constexpr double kLeastSpreadOfLosses = 0.005;
constexpr double kLeastSpreadOfGradNorms = 0.05;
constexpr double kLeastSpreadOfTimes = 0.1;

// Steps that take unusually long: 1.6 times as long as the others, at the least.
constexpr int64_t kTimesWindow = 50;
constexpr double kTimesZ = 6;

Spikes times() { return {kTimesWindow, kTimesZ, kLeastSpreadOfTimes}; }

}  // namespace

StepGuard::StepGuard(const TrainingConfig& config)
    : config_(config),
      losses_(config.loss_spike_window, config.loss_spike_z, kLeastSpreadOfLosses),
      grad_norms_(config.loss_spike_window, config.loss_spike_z, kLeastSpreadOfGradNorms),
      times_(times()) {}

float StepGuard::loss_limit(int64_t step) const {
  if (config_.on_loss_spike != OnLossSpike::kSkip) return std::numeric_limits<float>::infinity();
  return static_cast<float>(losses_.limit(step));
}

StepVerdict StepGuard::judge(const JudgedStep& step) {
  const auto [number, loss, grad_norm, sample_ms, skipped] = step;
  const bool spike = losses_.is_spike(number, loss);
  marks_ = {};
  if (spike && std::isfinite(loss)) marks_.loss_z = losses_.z_score(number, loss);
  const bool jumps = std::isfinite(grad_norm) && grad_norms_.is_spike(number, grad_norm);
  if (jumps) marks_.grad_norm_z = grad_norms_.z_score(number, grad_norm);
  if (times_.is_spike(number, sample_ms)) marks_.slowdown = sample_ms / times_.mean(number);
  times_.add(number, sample_ms);
  if (skipped) {
    ++skipped_;
    ++in_a_row_;
    return StepVerdict::kSkipped;
  }
  in_a_row_ = 0;
  // A run that goes on with it gets used to it; one that goes back never had it.
  if (!spike || config_.on_loss_spike == OnLossSpike::kWarn) {
    losses_.add(number, loss);
    grad_norms_.add(number, grad_norm);
  }
  return spike ? StepVerdict::kSpike : StepVerdict::kGood;
}

nlohmann::json StepGuard::to_json() const {
  return {{"losses", losses_.to_json()}, {"grad_norms", grad_norms_.to_json()}, {"skipped_steps", skipped_}};
}

void StepGuard::from_json(const nlohmann::json& json) {
  *this = StepGuard(config_);
  if (!json.is_object()) return;
  losses_.from_json(json.value("losses", nlohmann::json()));
  grad_norms_.from_json(json.value("grad_norms", nlohmann::json()));
  const auto skipped = json.find("skipped_steps");
  if (skipped != json.end() && skipped->is_number_integer()) skipped_ = skipped->get<int64_t>();
}

}  // namespace octavo

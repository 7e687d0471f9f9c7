#include "app/observers/step_guard.h"

#include <algorithm>
#include <cmath>

#include "core/files/json_input.h"

namespace octavo {

namespace {

// Smallest standard deviation that is assumed, as a share of the mean (Spikes). Losses hardly change from step to step,
// while norms and durations do.
constexpr double kMinSpreadOfLosses = 0.005;
constexpr double kMinSpreadOfGradNorms = 0.05;
constexpr double kMinSpreadOfTimes = 0.1;

// A step is slow if it takes at least 1.6 times as long as the steps before it and at least kMinDelayMs longer. Other
// processes and the system occasionally delay a process by tens of milliseconds.
constexpr int64_t kTimesWindow = 50;
constexpr double kTimesZ = 6;
constexpr double kMinDelayMs = 100;

}  // namespace

void Spikes::add(int64_t step, double value) {
  if (window_ == 0) return;
  values_.emplace_back(step, value);
  while (std::ssize(values_) > window_ + kLag) values_.pop_front();
}

Spikes::Spread Spikes::spread_before(int64_t step) const {
  auto end = values_.end();
  while (end != values_.begin() && std::prev(end)->first + kLag > step) --end;
  if (window_ == 0 || end - values_.begin() < window_) return {};
  const auto begin = end - window_;
  const auto count = static_cast<double>(window_);
  double sum = 0;
  for (auto it = begin; it != end; ++it) sum += it->second;
  const double mean = sum / count;
  double squares = 0;
  for (auto it = begin; it != end; ++it) squares += (it->second - mean) * (it->second - mean);
  return {mean, std::max(std::sqrt(squares / count), least_spread_ * std::abs(mean))};
}

double Spikes::z_score(int64_t step, double value) const {
  const Spread spread = spread_before(step);
  return std::isfinite(spread.deviation) && spread.deviation > 0 ? (value - spread.mean) / spread.deviation : 0;
}

double Spikes::limit(int64_t step) const {
  const Spread spread = spread_before(step);
  return spread.mean + threshold_ * spread.deviation;
}

void Spikes::from_json(const nlohmann::json& json) {
  values_.clear();
  if (!json.is_array()) return;
  for (const nlohmann::json& entry : json) {
    const bool is_value = entry.is_array() && entry.size() == 2 && entry[0].is_number_integer() && entry[1].is_number();
    if (is_value) add(entry[0].get<int64_t>(), entry[1].get<double>());
  }
}

StepGuard::StepGuard(const TrainingConfig& config, int64_t logging_every)
    : config_(config),
      logging_every_(logging_every),
      losses_(config.loss_spike_window, config.loss_spike_z, kMinSpreadOfLosses),
      grad_norms_(config.loss_spike_window, config.loss_spike_z, kMinSpreadOfGradNorms),
      times_(kTimesWindow, kTimesZ, kMinSpreadOfTimes) {}

float StepGuard::loss_limit(int64_t step) const {
  if (config_.on_loss_spike != OnLossSpike::kSkip) return std::numeric_limits<float>::infinity();
  return static_cast<float>(losses_.limit(step));
}

Judgement StepGuard::judge(const Step& step) {
  const int64_t number = step.number;
  const double loss = step.loss();
  const double grad_norm = step.grad_norm;
  const auto sequences = static_cast<double>(config_.batch_schedule().batch_size(number));
  const double sample_ms = step.step_ms / sequences;
  const bool spike = losses_.is_spike(number, loss);
  Judgement judgement{.spike = spike && !step.skipped};
  if (spike && std::isfinite(loss)) judgement.loss_z = losses_.z_score(number, loss);
  const bool jumps = std::isfinite(grad_norm) && grad_norms_.is_spike(number, grad_norm);
  if (jumps) judgement.grad_norm_z = grad_norms_.z_score(number, grad_norm);
  const double usual_ms = times_.mean(number) * sequences;
  if (times_.is_spike(number, sample_ms) && step.step_ms - usual_ms >= kMinDelayMs) {
    judgement.slowdown = step.step_ms / usual_ms;
    const int64_t interval = (number - 1) / logging_every_;
    judgement.warns_about_slowdown = std::exchange(last_warned_interval_, interval) != interval;
  }
  times_.add(number, sample_ms);
  if (step.skipped) {
    ++skipped_;
    ++in_a_row_;
    return judgement;
  }
  in_a_row_ = 0;
  // Spikes are added too, so that a run that continues adapts to a new level. A rollback restores the earlier values.
  losses_.add(number, loss);
  // The first steps are omitted, because their norms fall so fast that they do not show which later norm is unusual.
  if (number > config_.loss_spike_window) grad_norms_.add(number, grad_norm);
  return judgement;
}

nlohmann::json StepGuard::to_json() const {
  return {{"losses", losses_.to_json()}, {"grad_norms", grad_norms_.to_json()}, {"skipped_steps", skipped_}};
}

void StepGuard::from_json(const nlohmann::json& json) {
  *this = StepGuard(config_, logging_every_);
  if (!json.is_object()) return;
  losses_.from_json(json.value("losses", nlohmann::json()));
  grad_norms_.from_json(json.value("grad_norms", nlohmann::json()));
  skipped_ = find_value<int64_t>(json, "/skipped_steps").value_or(0);
}

}  // namespace octavo

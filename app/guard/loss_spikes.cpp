#include "app/guard/loss_spikes.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace octavo {

void LossSpikes::add(int64_t step, double loss) {
  if (window_ == 0) return;
  losses_.emplace_back(step, loss);
  while (std::ssize(losses_) > window_ + kLag) losses_.pop_front();
}

LossSpikes::Spread LossSpikes::spread_before(int64_t step) const {
  auto end = losses_.end();
  while (end != losses_.begin() && std::prev(end)->first + kLag > step) --end;
  if (window_ == 0 || end - losses_.begin() < window_) return {};
  const auto begin = end - window_;
  const auto count = static_cast<double>(window_);
  double sum = 0;
  for (auto it = begin; it != end; ++it) sum += it->second;
  const double mean = sum / count;
  double squares = 0;
  for (auto it = begin; it != end; ++it) squares += (it->second - mean) * (it->second - mean);
  return {mean, std::max(std::sqrt(squares / count), kLeastSpread * std::abs(mean))};
}

double LossSpikes::z_score(int64_t step, double loss) const {
  const Spread spread = spread_before(step);
  return std::isfinite(spread.deviation) && spread.deviation > 0 ? (loss - spread.mean) / spread.deviation : 0;
}

double LossSpikes::limit(int64_t step) const {
  const Spread spread = spread_before(step);
  return spread.mean + threshold_ * spread.deviation;
}

nlohmann::json LossSpikes::to_json() const { return losses_; }

void LossSpikes::from_json(const nlohmann::json& json) {
  losses_.clear();
  if (!json.is_array()) return;
  for (const nlohmann::json& entry : json) {
    const bool is_loss = entry.is_array() && entry.size() == 2 && entry[0].is_number_integer() && entry[1].is_number();
    if (is_loss) add(entry[0].get<int64_t>(), entry[1].get<double>());
  }
}

}  // namespace octavo

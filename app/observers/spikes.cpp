#include "app/observers/spikes.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace octavo {

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

nlohmann::json Spikes::to_json() const { return values_; }

void Spikes::from_json(const nlohmann::json& json) {
  values_.clear();
  if (!json.is_array()) return;
  for (const nlohmann::json& entry : json) {
    const bool is_value = entry.is_array() && entry.size() == 2 && entry[0].is_number_integer() && entry[1].is_number();
    if (is_value) add(entry[0].get<int64_t>(), entry[1].get<double>());
  }
}

}  // namespace octavo

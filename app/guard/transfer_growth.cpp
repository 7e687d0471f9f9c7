#include "app/guard/transfer_growth.h"

#include <algorithm>

#include "core/median.h"

namespace octavo {

namespace {

constexpr double kLongShare = 0.2;    // of a step, that all kinds together take
constexpr size_t kWindow = 20;        // of earlier values
constexpr size_t kLeastValues = 3;    // that a median is of
constexpr double kGrowth = 1.5;       // beyond their median
constexpr double kGrowthShare = 0.1;  // of the step, at least

}  // namespace

bool TransferGrowth::Looks::due(int64_t measured, bool has_reason) {
  in_a_row_ = has_reason ? in_a_row_ + 1 : 0;
  if (in_a_row_ < needed_ || measured < next_) return false;
  next_ = measured + pause_;
  pause_ *= 2;
  return true;
}

bool TransferGrowth::judge(double step_ms, const std::map<std::string, double>& times) {
  ++measured_;
  double sum = 0;
  for (const auto& [kind, ms] : times) sum += ms;
  const std::optional<TransferTime> grown = most_grown(step_ms, times);
  const bool looks_at_long_ones = at_long_ones_.due(measured_, sum > 0 && sum >= kLongShare * step_ms);
  const bool looks_at_growth = at_growth_.due(measured_, grown.has_value());
  time_ = grown ? *grown : longest(step_ms, times);
  if (grown) return looks_at_long_ones || looks_at_growth;
  for (const auto& [kind, ms] : times) {
    std::deque<double>& values = earlier_[kind];
    values.push_back(ms);
    if (values.size() > kWindow) values.pop_front();
  }
  return looks_at_long_ones;
}

TransferTime TransferGrowth::longest(double step_ms, const std::map<std::string, double>& times) const {
  const auto found =
      std::max_element(times.begin(), times.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (found == times.end()) return {.step_ms = step_ms};
  return {.kind = found->first, .ms = found->second, .step_ms = step_ms};
}

std::optional<TransferTime> TransferGrowth::most_grown(double step_ms,
                                                       const std::map<std::string, double>& times) const {
  std::optional<TransferTime> found;
  double most = kGrowthShare * step_ms;
  for (const auto& [kind, ms] : times) {
    const auto values = earlier_.find(kind);
    if (values == earlier_.end() || values->second.size() < kLeastValues) continue;
    const double before = median({values->second.begin(), values->second.end()});
    if (ms < kGrowth * before || ms - before < most) continue;
    most = ms - before;
    found = {.kind = kind, .ms = ms, .step_ms = step_ms, .before_ms = before};
  }
  return found;
}

}  // namespace octavo

#include "app/observers/slow_rank.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace octavo {

namespace {

constexpr double kMinShare = 0.1;
constexpr double kMinHeldMs = 2;
constexpr int kSteps = 3;

// Returns the upper median. With two ranks that is the rank that waits longer.
double median(std::span<const RankTimes> ranks, double RankTimes::*time) {
  std::vector<double> times;
  for (const RankTimes& rank : ranks) times.push_back(rank.*time);
  const auto middle = times.begin() + std::ssize(times) / 2;
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace

StageTimes stage_times(std::span<const RankTimes> ranks, int64_t stages, double step_ms) {
  const auto in_stage = ranks.size() / static_cast<size_t>(stages);
  StageTimes times;
  double least_ms = std::numeric_limits<double>::infinity();
  double sum_ms = 0;
  for (int64_t stage = 0; stage < stages; ++stage) {
    double stage_ms = 0;
    for (const RankTimes& rank : ranks.subspan(static_cast<size_t>(stage) * in_stage, in_stage)) {
      stage_ms += rank.stages_ms;
    }
    sum_ms += stage_ms;
    if (stage_ms >= least_ms) continue;
    least_ms = stage_ms;
    times.slowest = stage;
  }
  times.bubble = sum_ms / static_cast<double>(ranks.size()) / step_ms;
  return times;
}

std::optional<SlowRank> find_slow_rank(std::span<const RankTimes> ranks, double step_ms) {
  if (ranks.size() < 2) return std::nullopt;
  const auto slowest = std::ranges::min_element(ranks, {}, &RankTimes::collectives_ms);
  const double held_ms = median(ranks, &RankTimes::collectives_ms) - slowest->collectives_ms;
  if (held_ms < std::max(kMinHeldMs, kMinShare * step_ms)) return std::nullopt;
  double least_data_ms = slowest->data_ms;
  for (const RankTimes& rank : ranks) least_data_ms = std::min(least_data_ms, rank.data_ms);
  return SlowRank{.rank = static_cast<int>(slowest - ranks.begin()),
                  .held_ms = held_ms,
                  .in_data = slowest->data_ms - least_data_ms >= held_ms / 2};
}

std::optional<SlowRank> SlowRanks::judge(const std::optional<SlowRank>& found) {
  const int rank = found ? found->rank : -1;
  in_a_row_ = rank == rank_ ? in_a_row_ + 1 : 1;
  rank_ = rank;
  return in_a_row_ >= kSteps && found && reported_.insert(rank).second ? found : std::nullopt;
}

}  // namespace octavo

// Finds the rank that the others wait for.
//
// In synchronous training every rank's step takes as long as that of the slowest rank, and the other ranks spend the
// difference waiting in collectives. So the slowest rank is the one with the least time in collectives, and
//   held_ms = median(collectives_ms of all ranks) - collectives_ms of this rank
// is the time by which it delays the others.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>

namespace octavo {

// The times of a rank in one step.
struct RankTimes {
  // Time in collectives, including the time of waiting for other ranks, but not for other pipeline stages.
  double collectives_ms = 0;
  double data_ms = 0;    // Time of waiting for the data loader while the device was idle.
  double stages_ms = 0;  // Time of waiting for other pipeline stages.
};

// Times of the pipeline stages in a step.
struct StageTimes {
  double bubble = 0;    // Share of the step in which a stage waits for other stages, on average over all ranks.
  int64_t slowest = 0;  // Stage that waits the least, and is therefore busy the longest.
};

// Returns the times of `stages` pipeline stages, whose ranks follow each other.
StageTimes stage_times(std::span<const RankTimes> ranks, int64_t stages, double step_ms);

struct SlowRank {
  int rank = 0;
  double held_ms = 0;
  bool in_data = false;  // Whether the rank waits for its data loader. Otherwise its computation is slow.
};

// Returns the slowest rank if it delays the others by at least a tenth of the step and at least 2 ms. Otherwise returns
// nothing.
std::optional<SlowRank> find_slow_rank(std::span<const RankTimes> ranks, double step_ms);

// Reports a rank the first time that it is the slowest in three consecutive measured steps. A single slow step can have
// many causes.
class SlowRanks {
 public:
  // Adds the result of a measured step. Returns the rank to report, if any.
  std::optional<SlowRank> judge(const std::optional<SlowRank>& found);

 private:
  int rank_ = -1;
  int in_a_row_ = 0;
  std::set<int> reported_;
};

}  // namespace octavo

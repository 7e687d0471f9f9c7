// Finds the rank that the others wait for.
//
// In synchronous training every rank's step takes as long as that of the slowest one; the others spend the difference
// in collectives. So the slowest rank is the one that spends the least time in them, and
//   held_ms = median(collectives_ms of all ranks) - collectives_ms of this rank
// is how long it holds the others up.
#pragma once

#include <optional>
#include <span>

namespace octavo {

// The times of a rank in one step.
struct RankTimes {
  double collectives_ms = 0;  // In collectives, waiting for other ranks included.
  double data_ms = 0;         // Waiting for the data loader while the device had nothing to do.
};

struct SlowRank {
  int rank = 0;
  double held_ms = 0;
  bool in_data = false;  // It waits for its data loader. Otherwise it computes more slowly.
};

// Returns the slowest rank if it holds the others up for a tenth of the step and at least 2 ms.
std::optional<SlowRank> find_slow_rank(std::span<const RankTimes> ranks, double step_ms);

// Names a rank once, when it is the slowest in three measured steps in a row: single steps are slow for many reasons.
class SlowRanks {
 public:
  // Takes the result of a measured step. Returns the rank to name.
  std::optional<SlowRank> judge(const std::optional<SlowRank>& found);

 private:
  int rank_ = -1;
  int in_a_row_ = 0;
};

}  // namespace octavo

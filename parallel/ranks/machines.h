// Which ranks run on which machine, and where a copy of what is in a machine's memory is kept.
#pragma once

#include <span>
#include <vector>

#include "parallel/ranks/process_group.h"

namespace octavo {

// Machines are numbered in the order of their lowest ranks.
class Machines {
 public:
  // By rank a number that the ranks of one machine share, and no others.
  explicit Machines(std::span<const int> machine_by_rank);
  // A collective.
  explicit Machines(ProcessGroup& group);

  int count() const { return static_cast<int>(ranks_.size()); }
  int of(int rank) const { return machine_by_rank_[static_cast<size_t>(rank)]; }
  const std::vector<int>& ranks(int machine) const { return ranks_[static_cast<size_t>(machine)]; }  // ascending
  int first_rank(int machine) const { return ranks(machine).front(); }

  // The rank of the next machine that keeps a copy for `rank`: the one in the same place among the ranks of its
  // machine, or counted round where that has fewer. `rank` itself where there is one machine.
  int keeper(int rank) const { return counterpart(rank, (of(rank) + 1) % count()); }
  // Of `machine`, the rank in the place that `rank` has among those of its own.
  int counterpart(int rank, int machine) const;
  // The ranks of other machines whose keeper `rank` is.
  std::vector<int> kept_by(int rank) const;

 private:
  std::vector<int> machine_by_rank_;
  std::vector<std::vector<int>> ranks_;  // by machine
};

}  // namespace octavo

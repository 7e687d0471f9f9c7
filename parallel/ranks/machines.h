// Machines says which ranks run on which machine, and which rank of another machine stores a copy of a rank's data.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "parallel/ranks/process_group.h"

namespace octavo {

// Returns the name of this machine, or "localhost" if it has none.
std::string host_name();

// Machines of a run, numbered in the order of their lowest ranks.
class Machines {
 public:
  // Creates the list from one number per rank. Ranks of one machine have equal numbers.
  explicit Machines(std::span<const int> machine_by_rank);
  // Creates the list of the run's machines. A collective.
  explicit Machines(ProcessGroup& group);

  int count() const { return static_cast<int>(ranks_.size()); }
  int of(int rank) const { return machine_by_rank_[static_cast<size_t>(rank)]; }
  // Returns the ranks of a machine in ascending order.
  const std::vector<int>& ranks(int machine) const { return ranks_[static_cast<size_t>(machine)]; }
  int first_rank(int machine) const { return ranks(machine).front(); }

  // Returns the rank that stores the copy for `rank`: its counterpart() on the next machine (itself with one machine).
  int keeper(int rank) const { return counterpart(rank, (of(rank) + 1) % count()); }
  // Returns the rank of `machine` at the position that `rank` has on its own machine, modulo the number of ranks.
  int counterpart(int rank, int machine) const;
  // Returns the ranks of other machines whose keeper is `rank`.
  std::vector<int> kept_by(int rank) const;

 private:
  std::vector<int> machine_by_rank_;
  std::vector<std::vector<int>> ranks_;  // Ranks of each machine, in ascending order.
};

}  // namespace octavo

#include "parallel/ranks/machines.h"

#include <unistd.h>

#include <algorithm>
#include <map>

namespace octavo {

namespace {

std::vector<int> machine_by_rank(ProcessGroup& group) {
  const std::vector<uint64_t> machines = group.all_gather(static_cast<uint64_t>(group.machine()));
  return {machines.begin(), machines.end()};
}

}  // namespace

std::string host_name() {
  char host[256] = {};
  const bool has_name = gethostname(host, sizeof(host) - 1) == 0 && host[0] != '\0';
  return has_name ? host : "localhost";
}

Machines::Machines(ProcessGroup& group) : Machines(machine_by_rank(group)) {}

Machines::Machines(std::span<const int> machine_by_rank) {
  std::map<int, int> numbers;
  machine_by_rank_.reserve(machine_by_rank.size());
  for (const int machine : machine_by_rank) {
    const int number = numbers.emplace(machine, count()).first->second;
    if (number == count()) ranks_.emplace_back();
    ranks_[static_cast<size_t>(number)].push_back(static_cast<int>(machine_by_rank_.size()));
    machine_by_rank_.push_back(number);
  }
}

int Machines::counterpart(int rank, int machine) const {
  const std::vector<int>& mine = ranks(of(rank));
  const auto place = static_cast<size_t>(std::lower_bound(mine.begin(), mine.end(), rank) - mine.begin());
  return ranks(machine)[place % ranks(machine).size()];
}

std::vector<int> Machines::kept_by(int rank) const {
  std::vector<int> kept;
  const int before = (of(rank) + count() - 1) % count();
  std::copy_if(ranks(before).begin(), ranks(before).end(), std::back_inserter(kept),
               [&](int other) { return other != rank && keeper(other) == rank; });
  return kept;
}

}  // namespace octavo

// The links between the machines of a run: how fast each is, and which are slow beside the others.
//
// A link is from a rank to the rank in the same place on the next machine, and to that on the machine before. They are
// measured by messages of their own, as a collective says only that one of its links is slow: in turns, so that a
// machine sends or receives and does not do both, by the sender's clock until the receiver answers, the best of several
// rounds, as other work on the machines takes time too.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/ranks/machines.h"

namespace octavo {

struct Link {
  int from = 0;  // ranks
  int to = 0;
  double bytes_per_s = 0;
};

// Of a run on several machines, every link, the same on all ranks. `world` has all ranks; `scratch` is device memory
// whose contents are lost, as much on every rank, of which up to 16 MiB are used; nothing may be queued on the device.
// A collective that takes up to a second on links that carry 1 MB/s or more, and some tens of milliseconds on fast
// ones.
std::vector<Link> measure_links(Communicator& world, ProcessGroup& group, const Machines& machines,
                                const Tensor& scratch, Stream& stream);

// Links that are slow and have a machine in common.
struct SlowLinks {
  int machine = 0;
  std::optional<int> rank = {};   // where they are all of one of its ranks, and it has others that were measured
  std::optional<int> other = {};  // the machine at their other ends, where there is one
  bool sends = false;             // they are from the machine
  bool receives = false;          // they are to it
  double bytes_per_s = 0;         // their median
  double others = 0;              // that of the links that are not slow

  bool same_place(const SlowLinks& o) const {
    return machine == o.machine && rank == o.rank && sends == o.sends && receives == o.receives;
  }
};

// Those that carry less than half of what all others do; empty where there is no such gap, or where they are of so many
// machines that none of them stands out.
std::vector<SlowLinks> find_slow_links(std::span<const Link> links, const Machines& machines);

// "rank 3 on host1 sends 5.2 MB/s, the other links carry 24.1 MB/s". `hosts`: the names of the machines.
std::string describe(const SlowLinks& links, const Machines& machines, std::span<const std::string> hosts);

}  // namespace octavo

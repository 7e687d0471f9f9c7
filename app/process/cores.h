// The cores of a rank: what its launcher bound it to, and its share of the machine where nobody asked for less.
//
// Open MPI binds each of one or two ranks to a single core by default, so a rank alone on a machine of 16 would use
// one.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace octavo {

// A logical processor and where it is.
struct Core {
  int number = 0;
  int package = 0;
  int core = 0;  // within the package; hyper-threads have the same
};

// The share of rank `local_rank` of `local_size` ranks: as many for each, neighbours, hyper-threads of a core together.
// One core, not its own, where there are fewer cores than ranks.
std::vector<int> core_share(std::span<const Core> cores, int local_rank, int local_size);

// An environment variable's value, or nothing.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment process_environment();

// Whether mpirun (Open MPI 4) bound this process by default: it says that it did, and neither its options (--bind-to,
// --map-by ...:PE=n, --cpu-set, --cpu-list, a rankfile, ...) nor OpenMP's variables ask for certain cores or threads.
// What a file of MCA parameters asks for cannot be seen here. Slurm's bindings are what the job was given, and stay.
bool is_bound_by_default(const Environment& environment);

struct Widening {
  int from_cores = 0;
  int to_cores = 0;
  int machine_cores = 0;  // that the launcher itself may use
};
// Gives the calling thread, and so those it starts from now on, this rank's share of the cores that the launcher may
// use, where the process is bound by default to fewer. Cores that a cpuset withholds stay out.
std::optional<Widening> widen_to_share(int local_rank, int local_size);

}  // namespace octavo

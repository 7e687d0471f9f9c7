// The cores of a rank: those that its launcher bound it to, or its share of the machine if nobody asked for fewer.
//
// Open MPI by default binds each of one or two ranks to a single core, so a rank alone on a machine with 16 cores would
// use one.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace octavo {

// A logical processor and its place.
struct Core {
  int number = 0;
  int package = 0;
  int core = 0;  // Core within the package. Hyper-threads have equal numbers.
};

// Returns the share of rank `local_rank` of `local_size` ranks. All shares have equally many neighbouring cores, with
// the hyper-threads of a core together. If there are fewer cores than ranks, ranks share single cores.
std::vector<int> core_share(std::span<const Core> cores, int local_rank, int local_size);

// Returns the value of an environment variable, or nothing.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment process_environment();

// Returns whether mpirun (Open MPI 4) bound this process by default: its variables say that it bound the process, and
// neither its options (--bind-to, --map-by ...:PE=n, --cpu-set, --cpu-list, a rankfile, ...) nor OpenMP's variables ask
// for certain cores or threads. Requests in a file of MCA parameters are not visible here. Slurm's bindings are what
// the job was given, and stay.
bool is_bound_by_default(const Environment& environment);

struct WidenedBinding {
  int from_cores = 0;
  int to_cores = 0;
  int machine_cores = 0;  // Number of cores that the launcher itself may use.
};
// Gives the calling thread, and threads that it starts later, this rank's share of the cores that the launcher may use,
// if the process is bound by default to fewer. Cores that a cpuset withholds stay out.
std::optional<WidenedBinding> widen_to_share(int local_rank, int local_size);

}  // namespace octavo

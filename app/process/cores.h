// Chooses the CPU cores of a rank: the cores that the launcher bound the rank to if someone requested that binding, or
// else an equal share of the machine.
//
// By default Open MPI binds each rank to a single core if there are one or two ranks, so a single rank on a machine
// with 16 cores would use one of them.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace octavo {

// A logical processor and its position in the machine.
struct Core {
  int number = 0;
  int package = 0;
  int core = 0;  // Number of the core within the socket. Hyper-threads of a core have equal numbers.
};

// Returns the processors that the process `pid` may use, or this thread if `pid` is 0. Empty if the system does not
// report them.
std::vector<Core> cores_of(pid_t pid);

// Returns the processors of rank `local_rank` among the `local_size` ranks of this machine. Each rank gets the same
// number of neighbouring cores, including all hyper-threads of each core. If there are fewer cores than ranks, several
// ranks share one core.
std::vector<int> core_share(std::span<const Core> cores, int local_rank, int local_size);

// Function that returns the value of an environment variable, or nothing if it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment process_environment();

// Returns whether mpirun (Open MPI 4) bound this process by default. This is the case if mpirun's variables say that it
// bound the process, and neither its options (--bind-to, --map-by ...:PE=n, --cpu-set, --cpu-list, a rankfile, ...) nor
// OpenMP's variables request certain cores or threads. Requests in a file of MCA parameters cannot be seen. Slurm's
// bindings are part of the job's allocation and never count as a default.
bool is_bound_by_default(const Environment& environment);

struct WidenedBinding {
  int from_cores = 0;
  int to_cores = 0;
  int machine_cores = 0;  // Number of cores that the launcher itself may use.
};
// If mpirun bound this process by default to fewer cores than its share, binds the calling thread, and threads that it
// starts later, to the rank's share of the cores that the launcher may use. Never uses cores that a cpuset excludes.
std::optional<WidenedBinding> widen_to_share(int local_rank, int local_size);

}  // namespace octavo

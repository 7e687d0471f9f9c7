// Facts about processes, and about the Open MPI launcher that started this process: mpirun, or its daemon on other
// machines.
#pragma once

#include <sys/types.h>

#include <string>

namespace octavo {

// Facts about a process from /proc/PID/stat (proc(5)). Fields are empty or 0 if the file cannot be read.
struct ProcessFacts {
  std::string name = {};
  pid_t parent = 0;
  double start_ticks = 0;  // Start time in clock ticks since the machine booted.
};
// Returns the facts about a process. `pid` is a number or "self".
ProcessFacts process_facts(const std::string& pid);

// Returns the nearest ancestor of this process that is a launcher, or 0 if there is none.
pid_t find_launcher();

// Returns a descriptor of the pipe to which the launcher forwards this process's output. Polling it for POLLOUT reports
// POLLERR as soon as nobody reads the pipe. Returns -1 if there is no launcher, or if the launcher's output is not a
// pipe or cannot be opened. The caller closes the descriptor.
int open_launcher_output();

}  // namespace octavo

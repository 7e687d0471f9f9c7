// Facts about processes, and Open MPI's launcher, seen from a process that it started: mpirun, or its daemon on another
// machine.
#pragma once

#include <sys/types.h>

#include <string>

namespace octavo {

// Facts about a process from /proc/PID/stat (proc(5)). Empty and 0 if it cannot be read.
struct ProcessFacts {
  std::string name = {};
  pid_t parent = 0;
  double start_ticks = 0;  // Clock ticks from the start of the machine to that of the process.
};
// `pid`: a number, or "self".
ProcessFacts process_facts(const std::string& pid);

// Returns the nearest ancestor of this process that is a launcher, or 0 if there is none.
pid_t find_launcher();

// Returns a descriptor of what the launcher copies this process's output to, if that is a pipe: polling it for POLLOUT
// gives POLLERR once nobody reads it any more. Returns -1 if there is no launcher, or if its output is no pipe or
// cannot be seen. The caller closes it.
int open_launcher_output();

}  // namespace octavo

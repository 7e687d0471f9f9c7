// Open MPI's launcher, seen from a process that it started: mpirun, or its daemon on another machine.
#pragma once

#include <sys/types.h>

namespace octavo {

// The nearest ancestor of this process that is one; 0 where there is none.
pid_t find_launcher();

// A descriptor of what the launcher copies this process's output to, if that is a pipe: polling it for POLLOUT gives
// POLLERR once nobody reads it any more. -1 where there is no launcher, or its output is no pipe or cannot be seen. The
// caller closes it.
int open_launcher_output();

}  // namespace octavo

#include "app/process/launcher.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <utility>

#include "core/files/input_file.h"

namespace octavo {

namespace {

// Name and parent of a process; an empty name and 0 where it cannot be read.
std::pair<std::string, pid_t> process_facts(pid_t pid) {
  const std::string line = read_system_file("/proc/" + std::to_string(pid) + "/stat");
  const size_t open = line.find('(');
  const size_t close = line.rfind(')');  // a name may hold parentheses
  if (open == std::string::npos || close == std::string::npos || line.size() < close + 5) return {"", 0};
  return {line.substr(open + 1, close - open - 1), static_cast<pid_t>(std::atoi(line.c_str() + close + 4))};
}

}  // namespace

pid_t find_launcher() {
  constexpr std::array kNames = {"mpirun", "mpiexec", "orterun", "orted", "prterun", "prted", "prun"};
  for (pid_t pid = ::getppid(); pid > 1;) {
    const auto [name, parent] = process_facts(pid);
    if (std::find(kNames.begin(), kNames.end(), name) != kNames.end()) return pid;
    pid = parent;
  }
  return 0;
}

int open_launcher_output() {
  const pid_t launcher = find_launcher();
  if (launcher == 0) return -1;
  const std::string path = "/proc/" + std::to_string(launcher) + "/fd/1";
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISFIFO(status.st_mode)) return -1;
  return ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
}

}  // namespace octavo

#include "app/process/launcher.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "core/files/input_file.h"

namespace octavo {

// The name may contain spaces and parentheses, so fields are counted after the last parenthesis. The parent is the
// fourth field, and the start time the 22nd.
ProcessFacts process_facts(const std::string& pid) {
  const std::string line = read_system_file("/proc/" + pid + "/stat");
  const size_t open = line.find('(');
  const size_t close = line.rfind(')');
  if (open == std::string::npos || close == std::string::npos) return {};
  ProcessFacts facts{.name = line.substr(open + 1, close - open - 1)};
  std::istringstream fields(line.substr(close + 1));
  std::string skipped;
  fields >> skipped >> facts.parent;
  for (int number = 5; number < 22; ++number) fields >> skipped;
  fields >> facts.start_ticks;
  return facts;
}

pid_t find_launcher() {
  constexpr std::array kNames = {"mpirun", "mpiexec", "orterun", "orted", "prterun", "prted", "prun"};
  for (pid_t pid = ::getppid(); pid > 1;) {
    const ProcessFacts facts = process_facts(std::to_string(pid));
    if (std::ranges::find(kNames, facts.name) != kNames.end()) return pid;
    pid = facts.parent;
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

#include "app/process/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

#include "core/format.h"

namespace octavo {

namespace {

namespace fs = std::filesystem;

// File names of one version of the control groups. A missing file or the value "max" means that there is no limit.
struct GroupFiles {
  std::string_view file_system;
  std::array<const char*, 2> limits;
  const char* usage;
  std::array<const char*, 2> page_cache;  // Names of the lines in memory.stat.
};
constexpr GroupFiles kVersion1 = {
    "cgroup", {"memory.limit_in_bytes", ""}, "memory.usage_in_bytes", {"total_active_file", "total_inactive_file"}};
constexpr GroupFiles kVersion2 = {
    "cgroup2", {"memory.max", "memory.high"}, "memory.current", {"active_file", "inactive_file"}};

std::optional<int64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

// Returns the number after `word` in the first line that begins with it, or nothing.
std::optional<int64_t> number_after(const fs::path& path, std::string_view word) {
  std::ifstream file(path);
  int64_t number = 0;
  std::string rest;
  for (std::string name; file >> name >> number; std::getline(file, rest)) {
    if (name == word) return number;
  }
  return std::nullopt;
}

bool is_in_list(const std::string& list, std::string_view word) {
  std::istringstream stream(list);
  for (std::string item; std::getline(stream, item, ',');) {
    if (item == word) return true;
  }
  return false;
}

// Returns the path of this process's group from /proc/self/cgroup, which has lines "number:controllers:path". Empty if
// there is none.
std::string group_path(const fs::path& root, const GroupFiles& files) {
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_ours =
        files.file_system == kVersion2.file_system ? controllers.empty() : is_in_list(controllers, "memory");
    if (is_ours) return line.substr(second + 1);
  }
  return "";
}

// Returns the directories of this process's group and of its ancestors, as far as they are mounted here. A container
// may see its own group at the mount point, whatever the group's path is.
std::vector<fs::path> group_directories(const fs::path& root, const GroupFiles& files) {
  const std::string path = group_path(root, files);
  if (path.empty()) return {};
  std::ifstream file(root / "proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    // Fields: id, parent, device, root, mount point, options..., "-", type, source, options.
    std::istringstream fields(line);
    std::string skipped;
    std::string mounted;
    std::string mount_point;
    fields >> skipped >> skipped >> skipped >> mounted >> mount_point;
    while (fields >> skipped && skipped != "-") {
    }
    std::string type;
    std::string options;
    fields >> type >> skipped >> options;
    if (type != files.file_system) continue;
    if (type == kVersion1.file_system && !is_in_list(options, "memory")) continue;
    const fs::path top = root / fs::path(mount_point).relative_path();
    std::vector<fs::path> directories = {top};
    const fs::path below = fs::path(path).lexically_relative(mounted);
    if (below.empty() || *below.begin() == "..") return directories;
    fs::path directory = top;
    for (const fs::path& name : below) {
      if (name != ".") directories.push_back(directory /= name);
    }
    return directories;
  }
  return {};
}

void apply(HostMemory& memory, int64_t limit, int64_t used, const std::string& name) {
  memory.total_bytes = std::min(memory.total_bytes, limit);
  const int64_t available = std::max<int64_t>(limit - used, 0);
  if (available >= memory.available_bytes) return;
  memory.available_bytes = available;
  memory.limit = name;
}

void apply_groups(HostMemory& memory, const fs::path& root, const GroupFiles& files) {
  for (const fs::path& directory : group_directories(root, files)) {
    int64_t used = number_in(directory / files.usage).value_or(0);
    for (const char* line : files.page_cache) used -= number_after(directory / "memory.stat", line).value_or(0);
    for (const char* name : files.limits) {
      const std::optional<int64_t> limit = number_in(directory / name);
      if (limit) apply(memory, *limit, std::max<int64_t>(used, 0), (directory / name).string());
    }
  }
}

// Returns the integer in an environment variable if it is above 0 and below 2^40.
std::optional<int64_t> count_in(const Environment& environment, const std::string& name) {
  int64_t count = 0;
  std::istringstream text(environment(name).value_or(""));
  const bool is_count = text >> count && text.eof() && count > 0 && count < int64_t{1} << 40;
  return is_count ? std::optional(count) : std::nullopt;
}

// Applies the memory that Slurm granted on this node, in MiB. Slurm may enforce the grant without a control group. The
// memory use of the other ranks is unknown, so each is assumed to use as much as this rank.
void apply_slurm(HostMemory& memory, int processes, const Environment& environment, const fs::path& root) {
  struct Grant {
    const char* variable;
    const char* times;  // Variable that multiplies the grant. Empty if the grant is for the whole node.
  };
  constexpr std::array<Grant, 3> kGrants = {Grant{"SLURM_MEM_PER_NODE", ""},
                                            Grant{"SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE"},
                                            Grant{"SLURM_MEM_PER_GPU", "SLURM_GPUS_ON_NODE"}};
  std::ifstream statm(root / "proc/self/statm");
  int64_t all_pages = 0;
  int64_t resident_pages = 0;
  statm >> all_pages >> resident_pages;
  const int64_t used = processes * resident_pages * sysconf(_SC_PAGESIZE);
  for (const Grant& grant : kGrants) {
    const std::optional<int64_t> mib = count_in(environment, grant.variable);
    const auto times = grant.times[0] == '\0' ? std::optional<int64_t>(1) : count_in(environment, grant.times);
    if (!mib || !times || *times > int64_t{1} << 20) continue;
    apply(memory, std::min(*mib, (int64_t{1} << 42) / *times) * *times * kMiB, used, grant.variable);
  }
}

}  // namespace

HostMemory host_memory(int processes, const Environment& environment, const fs::path& root) {
  constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();
  const auto of_kernel = [&](std::string_view word) {
    const std::optional<int64_t> kib = number_after(root / "proc/meminfo", word);
    return kib ? *kib * kKiB : kUnknown;
  };
  HostMemory memory{of_kernel("MemTotal:"), of_kernel("MemAvailable:"), ""};
  for (const GroupFiles& files : {kVersion1, kVersion2}) apply_groups(memory, root, files);
  apply_slurm(memory, processes, environment, root);
  return memory;
}

}  // namespace octavo

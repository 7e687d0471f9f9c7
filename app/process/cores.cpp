#include "app/process/cores.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <tuple>

#include "app/process/launcher.h"
#include "core/error.h"
#include "core/files/input_file.h"

namespace octavo {

namespace {

// Variables that mpirun sets for the options of these names, or that the user sets. Each requests certain cores.
constexpr std::array kBindingVariables = {"OMPI_MCA_hwloc_base_binding_policy",
                                          "OMPI_MCA_hwloc_base_bind_to_core",
                                          "OMPI_MCA_hwloc_base_bind_to_socket",
                                          "OMPI_MCA_hwloc_base_cpu_set",
                                          "OMPI_MCA_hwloc_base_cpu_list",
                                          "OMPI_MCA_rmaps_base_cpus_per_rank",
                                          "OMPI_MCA_orte_rankfile",
                                          "OMPI_MCA_rmaps_rank_file_path",
                                          "OMP_NUM_THREADS",
                                          "OMP_PROC_BIND",
                                          "OMP_PLACES",
                                          "GOMP_CPU_AFFINITY"};

int topology(int core, const char* what) {
  return std::atoi(read_system_file(fmt::format("/sys/devices/system/cpu/cpu{}/topology/{}", core, what)).c_str());
}

}  // namespace

std::vector<Core> cores_of(pid_t pid) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(pid, sizeof(set), &set) != 0) return {};
  std::vector<Core> cores;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) cores.push_back({i, topology(i, "physical_package_id"), topology(i, "core_id")});
  }
  return cores;
}

std::vector<int> core_share(std::span<const Core> cores, int local_rank, int local_size) {
  std::vector<Core> sorted(cores.begin(), cores.end());
  std::ranges::sort(sorted, {}, [](const Core& core) { return std::tie(core.package, core.core, core.number); });
  const auto count = static_cast<int>(sorted.size());
  if (count < local_size) return {sorted.at(static_cast<size_t>(local_rank % count)).number};
  const int each = count / local_size;
  std::vector<int> share;
  for (int i = local_rank * each; i < (local_rank + 1) * each; ++i) {
    share.push_back(sorted[static_cast<size_t>(i)].number);
  }
  return share;
}

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  };
}

bool is_bound_by_default(const Environment& environment) {
  if (!environment("OMPI_MCA_orte_bound_at_launch")) return false;
  if (std::ranges::any_of(kBindingVariables, [&](const char* name) { return environment(name).has_value(); })) {
    return false;
  }
  std::string mapping = environment("OMPI_MCA_rmaps_base_mapping_policy").value_or("");
  std::ranges::transform(mapping, mapping.begin(), [](unsigned char c) { return std::toupper(c); });
  return mapping.find("PE=") == std::string::npos;
}

std::optional<WidenedBinding> widen_to_share(int local_rank, int local_size) {
  if (!is_bound_by_default(process_environment())) return std::nullopt;
  const pid_t parent = find_launcher();
  if (parent == 0) return std::nullopt;
  const std::vector<Core> machine = cores_of(parent);
  const std::vector<Core> bound = cores_of(0);
  if (machine.empty() || bound.empty()) return std::nullopt;
  const std::vector<int> share = core_share(machine, local_rank, local_size);
  if (bound.size() >= share.size()) return std::nullopt;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : share) CPU_SET(core, &set);
  if (sched_setaffinity(0, sizeof(set), &set) != 0) return std::nullopt;
  return WidenedBinding{static_cast<int>(bound.size()), static_cast<int>(cores_of(0).size()),
                        static_cast<int>(machine.size())};
}

}  // namespace octavo

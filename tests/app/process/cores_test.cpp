// Tests how ranks share the cores of a machine, and how the program recognizes a binding that mpirun chose by default.
#include "app/process/cores.h"

#include <gtest/gtest.h>

#include <map>

namespace octavo {
namespace {

// Returns two packages with four cores each and two hyper-threads per core. Linux numbers the first hyper-threads of
// all cores before the second ones.
std::vector<Core> two_packages() {
  std::vector<Core> cores(16);
  for (int i = 0; i < 16; ++i) cores[static_cast<size_t>(i)] = {i, i % 8 / 4, i % 4};
  return cores;
}

TEST(CoreShare, NeighboursWithTheirHyperThreads) {
  EXPECT_EQ(core_share(two_packages(), 0, 2), (std::vector<int>{0, 8, 1, 9, 2, 10, 3, 11}));
  EXPECT_EQ(core_share(two_packages(), 1, 2), (std::vector<int>{4, 12, 5, 13, 6, 14, 7, 15}));
  EXPECT_EQ(core_share(two_packages(), 3, 8), (std::vector<int>{3, 11}));
  EXPECT_EQ(core_share(two_packages(), 0, 1).size(), 16u);
}

TEST(CoreShare, AsManyForEveryRank) {
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(core_share(two_packages(), rank, 3).size(), 5u) << rank;
  // With more ranks than cores, several ranks share a core.
  EXPECT_EQ(core_share(std::vector<Core>{{6, 0, 0}, {9, 0, 1}}, 4, 5), (std::vector<int>{6}));
}

// Open MPI 4.1 sets a variable for each option that the user gave, and orte_bound_at_launch if it bound the processes.
TEST(Binding, ByDefaultOrAskedFor) {
  const auto by_default = [](std::map<std::string, std::string> variables) {
    return is_bound_by_default([variables = std::move(variables)](const std::string& name) {
      const auto found = variables.find(name);
      return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
    });
  };
  const std::pair<const std::string, std::string> bound{"OMPI_MCA_orte_bound_at_launch", "1"};
  EXPECT_TRUE(by_default({bound}));
  EXPECT_TRUE(by_default({bound, {"OMPI_MCA_rmaps_base_mapping_policy", "ppr:8:node"}}));
  // The process is not bound, or taskset bound it.
  EXPECT_FALSE(by_default({}));
  // srun bound the process.
  EXPECT_FALSE(by_default({{"SLURM_CPU_BIND_TYPE", "mask_cpu:"}}));
  // The user chose the binding, with --bind-to core and similar options.
  EXPECT_FALSE(by_default({bound, {"OMPI_MCA_hwloc_base_binding_policy", "core"}}));
  EXPECT_FALSE(by_default({bound, {"OMPI_MCA_hwloc_base_cpu_set", "0"}}));
  EXPECT_FALSE(by_default({bound, {"OMPI_MCA_orte_rankfile", "ranks"}}));
  EXPECT_FALSE(by_default({bound, {"OMPI_MCA_rmaps_base_mapping_policy", "slot:pe=2"}}));
  EXPECT_FALSE(by_default({bound, {"OMP_NUM_THREADS", "1"}}));
  EXPECT_FALSE(by_default({bound, {"OMP_PROC_BIND", "true"}}));
}

}  // namespace
}  // namespace octavo

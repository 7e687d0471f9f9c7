// Tests of the memory that a run may use, on file systems of imaginary machines with and without limits.
#include "app/process/host_memory.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>

#include "core/error.h"
#include "core/format.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

class HostMemoryTest : public ::testing::Test {
 protected:
  HostMemoryTest() { file("proc/meminfo", "MemTotal:  104857600 kB\nMemFree: 1 kB\nMemAvailable:  83886080 kB\n"); }

  void file(const std::string& path, const std::string& content) {
    fs::create_directories((root_ / path).substr(0, (root_ / path).rfind('/')));
    write_file(root_ / path, content);
  }
  // Writes a group of cgroup version 2 in sys/fs/cgroup/DIR.
  void group2(const std::string& dir, const std::string& max, const std::string& high, int64_t gib_used,
              int64_t gib_cached = 0) {
    const std::string at = "sys/fs/cgroup/" + dir + "/";
    file(at + "memory.max", max + "\n");
    file(at + "memory.high", high + "\n");
    file(at + "memory.current", std::to_string(gib_used * kGiB) + "\n");
    file(at + "memory.stat", "anon 5\ninactive_file " + std::to_string(gib_cached * kGiB / 2) + "\nactive_file " +
                                 std::to_string(gib_cached * kGiB / 2) + "\n");
  }
  void group1(const std::string& dir, const std::string& limit, int64_t gib_used, int64_t gib_cached = 0) {
    const std::string at = "sys/fs/cgroup/memory/" + dir + "/";
    file(at + "memory.limit_in_bytes", limit + "\n");
    file(at + "memory.usage_in_bytes", std::to_string(gib_used * kGiB) + "\n");
    file(at + "memory.stat", "cache 7\ntotal_inactive_file " + std::to_string(gib_cached * kGiB) + "\n");
  }
  void self(const std::string& cgroup, const std::string& mounts) {
    file("proc/self/cgroup", cgroup);
    file("proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/vda rw\n" + mounts);
  }
  HostMemory memory(std::map<std::string, std::string> variables = {}, int processes = 1) const {
    const Environment environment = [&](const std::string& name) -> std::optional<std::string> {
      const auto found = variables.find(name);
      return found == variables.end() ? std::nullopt : std::optional(found->second);
    };
    return host_memory(processes, environment, root_ / "");
  }
  void expect(const HostMemory& found, int64_t total_gib, int64_t available_gib, const std::string& limit) const {
    EXPECT_EQ(found.total_bytes, total_gib * kGiB);
    EXPECT_EQ(found.available_bytes, available_gib * kGiB);
    const bool is_file = limit.find('/') != std::string::npos;
    EXPECT_EQ(found.limit, is_file ? root_ / limit : limit);
  }

  static constexpr const char* kMount2 = "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
  static constexpr const char* kMount1 =
      "31 22 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
      "32 22 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
  static std::string gib_text(int64_t gib) { return std::to_string(gib * kGiB); }

  TempDir root_;
};

TEST_F(HostMemoryTest, IsTheKernelsWithoutLimits) {
  expect(memory(), 100, 80, "");
  self("0::/user.slice/run.scope\n", kMount2);
  group2("user.slice/run.scope", "max", "max", 90);
  expect(memory(), 100, 80, "");
  EXPECT_EQ(memory().describe_limit(), "");
}

TEST_F(HostMemoryTest, IsTheLeastOfAllGroupsAbove) {
  self("0::/job/step/task\n", kMount2);
  group2("job", gib_text(20), "max", 12);
  group2("job/step", "max", "max", 12);
  group2("job/step/task", gib_text(16), "max", 2);
  expect(memory(), 16, 8, "sys/fs/cgroup/job/memory.max");
  EXPECT_EQ(memory().describe_limit(), " by the limit in " + (root_ / "sys/fs/cgroup/job/memory.max"));
}

TEST_F(HostMemoryTest, CountsPageCacheAsAvailable) {
  self("0::/job\n", kMount2);
  group2("job", gib_text(20), "max", 19, 10);
  expect(memory(), 20, 11, "sys/fs/cgroup/job/memory.max");
}

TEST_F(HostMemoryTest, HeedsTheLimitThatThrottles) {
  self("0::/job\n", kMount2);
  group2("job", gib_text(20), gib_text(10), 4);
  expect(memory(), 10, 6, "sys/fs/cgroup/job/memory.high");
  group2("job", gib_text(20), gib_text(10), 12);
  expect(memory(), 10, 0, "sys/fs/cgroup/job/memory.high");
}

TEST_F(HostMemoryTest, FindsTheOwnGroupOfAContainer) {
  group2("", gib_text(8), "max", 1);
  self("0::/\n", kMount2);
  expect(memory(), 8, 7, "sys/fs/cgroup/memory.max");
  self("0::/docker/1234\n", "30 22 0:26 /docker/1234 /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n");
  expect(memory(), 8, 7, "sys/fs/cgroup/memory.max");
  self("0::/\n", "30 22 0:26 /../.. /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n");
  expect(memory(), 8, 7, "sys/fs/cgroup/memory.max");
}

TEST_F(HostMemoryTest, ReadsVersion1) {
  self("5:cpu,cpuacct:/\n4:memory:/slurm/job_7\n", kMount1);
  group1("", "9223372036854771712", 30);
  group1("slurm", "9223372036854771712", 20);
  group1("slurm/job_7", gib_text(32), 20, 4);
  expect(memory(), 32, 16, "sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes");
  self("4:memory:/docker/12\n", "32 22 0:28 /docker/12 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  group1("", gib_text(4), 1);
  expect(memory(), 4, 3, "sys/fs/cgroup/memory/memory.limit_in_bytes");
}

// Version 1 of cgroup limits the memory, and version 2 is mounted for systemd only.
TEST_F(HostMemoryTest, ReadsMixedVersions) {
  self("4:memory:/job\n0::/init.scope\n",
       std::string(kMount1) + "40 22 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  group1("job", gib_text(6), 1);
  file("sys/fs/cgroup/unified/init.scope/cgroup.procs", "1\n");
  expect(memory(), 6, 5, "sys/fs/cgroup/memory/job/memory.limit_in_bytes");
}

TEST_F(HostMemoryTest, HeedsWhatSlurmGranted) {
  expect(memory({{"SLURM_MEM_PER_NODE", "10240"}}), 10, 10, "SLURM_MEM_PER_NODE");
  expect(memory({{"SLURM_MEM_PER_CPU", "2048"}, {"SLURM_CPUS_ON_NODE", "8"}}), 16, 16, "SLURM_MEM_PER_CPU");
  expect(memory({{"SLURM_MEM_PER_GPU", "4096"}, {"SLURM_GPUS_ON_NODE", "2"}}), 8, 8, "SLURM_MEM_PER_GPU");
  for (const char* text : {"0", "-1", "", "10G", "99999999999999999999"}) {
    expect(memory({{"SLURM_MEM_PER_NODE", text}}), 100, 80, "");
  }
  expect(memory({{"SLURM_MEM_PER_CPU", "1099511627775"}, {"SLURM_CPUS_ON_NODE", "1048576"}}), 100, 80, "");
  file("proc/self/statm", "999999 262144 12 1 0 5 0\n");  // The process uses one GiB of pages.
  expect(memory({{"SLURM_MEM_PER_NODE", "10240"}}, 3), 10, 7, "SLURM_MEM_PER_NODE");
}

TEST_F(HostMemoryTest, IsUnlimitedWhereTheSystemDoesNotSay) {
  file("proc/meminfo", "");
  EXPECT_EQ(memory().available_bytes, std::numeric_limits<int64_t>::max());
}

}  // namespace
}  // namespace octavo

// Tests of the findings of octavo doctor on imaginary machines.
#include "app/measure/doctor_checks.h"

#include <gtest/gtest.h>

#include "core/format.h"

namespace octavo {
namespace {

void expect_words(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
}

GpuInfo h200(int index) {
  return {.name = "NVIDIA H200",
          .pci_bus_id = "0000:" + std::to_string(index) + "b:00.0",
          .uuid = "uuid" + std::to_string(index),
          .compute_major = 9,
          .compute_minor = 0,
          .total_bytes = 140 * kGiB,
          .free_bytes = 140 * kGiB - kGiB / 2};
}

// Returns the facts of `count` ranks on one host. Each has its own GPU, and nothing is wrong.
std::vector<RankFacts> healthy_ranks(int count) {
  std::vector<RankFacts> ranks;
  for (int rank = 0; rank < count; ++rank) {
    RankFacts r;
    r.rank = r.local_rank = rank;
    r.local_size = r.gpus_visible = count;
    r.host = "node7";
    r.cores = 16;
    r.shared_memory_bytes = r.locked_memory_limit = kGiB;
    r.open_files_limit = 65536;
    r.has_cuda = true;
    r.driver_cuda = 12090;
    r.runtime_cuda = 12080;
    r.gpus = {h200(rank)};
    r.versions = {{"nccl", "2.28.9"}};
    ranks.push_back(r);
  }
  return ranks;
}

// Expects exactly one finding, whose text contains all of `parts`.
void expect_only(const std::vector<RankFacts>& ranks, bool prevents_training, const std::vector<std::string>& parts) {
  const std::vector<Finding> findings = find_problems(ranks);
  ASSERT_EQ(findings.size(), 1u) << parts.front();
  EXPECT_EQ(findings[0].prevents_training, prevents_training) << findings[0].text;
  for (const std::string& part : parts) expect_words(findings[0].text, part);
}

TEST(DoctorChecks, NothingIsWrongWithHealthyRanks) {
  EXPECT_TRUE(find_problems(healthy_ranks(1)).empty());
  EXPECT_TRUE(find_problems(healthy_ranks(8)).empty());
  EXPECT_TRUE(all_have_gpus(healthy_ranks(2)));
  EXPECT_FALSE(any_share_a_gpu(healthy_ranks(2)));
  EXPECT_EQ(count_hosts(healthy_ranks(8)), 1);
}

TEST(DoctorChecks, DriverOlderThanTheRuntime) {
  auto ranks = healthy_ranks(2);
  for (RankFacts& r : ranks) {
    r.gpus.clear();
    r.gpus_visible = 0;
    r.runtime_cuda = 13000;
  }
  expect_only(ranks, true, {"node7", "CUDA 12.9", "CUDA 13.0", "newer driver"});
  EXPECT_FALSE(all_have_gpus(ranks));
}

TEST(DoctorChecks, MinorVersionsOfCudaWorkTogether) {
  auto ranks = healthy_ranks(1);
  ranks[0].driver_cuda = 12020;
  EXPECT_TRUE(find_problems(ranks).empty());
}

TEST(DoctorChecks, NoGpuIsAWarningInACudaBuildAlone) {
  auto ranks = healthy_ranks(1);
  ranks[0].gpus.clear();
  ranks[0].gpus_visible = 0;
  ranks[0].driver_cuda = 0;
  expect_only(ranks, false, {"no GPU was found", "no driver"});
  ranks[0].has_cuda = false;
  EXPECT_TRUE(find_problems(ranks).empty());
}

TEST(DoctorChecks, GpuWithoutKernels) {
  auto ranks = healthy_ranks(1);
  ranks[0].gpus.push_back(h200(1));
  ranks[0].gpus[1].compute_major = 8;
  expect_only(ranks, false, {"0000:1b:00.0", "CUDA_VISIBLE_DEVICES"});
  std::swap(ranks[0].gpus[0], ranks[0].gpus[1]);
  expect_only(ranks, true, {"0000:1b:00.0", "capability 8.0", "device: cpu"});
  EXPECT_FALSE(all_have_gpus(ranks));
}

TEST(DoctorChecks, TwoRanksOnOneGpu) {
  auto ranks = healthy_ranks(4);
  ranks[3].gpus[0] = ranks[1].gpus[0];
  ranks[3].gpus_visible = 3;
  expect_only(ranks, true, {"ranks 1 and 3", "0000:1b:00.0", "shows 3 and has 4 ranks"});
  EXPECT_TRUE(any_share_a_gpu(ranks));
}

TEST(DoctorChecks, MemoryInUseByOthers) {
  auto ranks = healthy_ranks(2);
  ranks[1].gpus[0].free_bytes = 140 * kGiB - kGiB / 2 - kGiB;
  EXPECT_TRUE(find_problems(ranks).empty());
  ranks[1].gpus[0].free_bytes = 130 * kGiB - kGiB / 2;
  expect_only(ranks, false, {"0000:1b:00.0", "10.0 of 140.0 GiB"});
  // More than a tenth of the memory is in use.
  ranks[1].gpus[0].free_bytes = 110 * kGiB - kGiB / 2;
  expect_only(ranks, true, {"0000:1b:00.0", "30.0 of 140.0 GiB"});
}

TEST(DoctorChecks, FewerGpusThanRanksToCome) {
  auto ranks = healthy_ranks(1);
  ranks[0].gpus_visible = 7;
  ranks[0].planned_ranks = 7;
  EXPECT_TRUE(find_problems(ranks).empty());
  ranks[0].planned_ranks = 8;
  expect_only(ranks, true, {"node7: 7 GPUs are visible", "8 ranks are to run here"});
  ranks[0].gpus.clear();
  ranks[0].gpus_visible = 0;
  expect_only(ranks, false, {"no GPU was found"});  // The program would run on the CPU.
}

TEST(DoctorChecks, MemoryOfTheHost) {
  auto ranks = healthy_ranks(2);
  ranks[0].memory_bytes = 100 * kGiB;
  ranks[0].memory_available_bytes = 10 * kGiB;
  EXPECT_TRUE(find_problems(ranks).empty());
  ranks[0].memory_available_bytes = 9 * kGiB;
  expect_only(ranks, false, {"node7: 9.0 of 100.0 GiB"});
  ranks[0].memory_available_bytes = 90 * kGiB;
  ranks[0].memory_errors = 2;
  ranks[1].memory_errors = 2;  // The count belongs to the host, so both ranks report it.
  expect_only(ranks, true, {"node7: 2 errors of the host's memory"});
}

TEST(DoctorChecks, DiskForCheckpoints) {
  auto ranks = healthy_ranks(2);
  ranks[0].disk = {.dir = "/scratch", .error = "", .free_bytes = kGiB};
  EXPECT_TRUE(find_problems(ranks).empty());
  ranks[0].disk.free_bytes = kGiB / 2;
  expect_only(ranks, false, {"node7: /scratch has 0.50 GiB free"});
  ranks[0].disk.error = "/scratch/x: cannot be created: Read-only file system";
  expect_only(ranks, true, {"node7: checkpoints cannot be written: /scratch/x", "Read-only"});
}

TEST(DoctorChecks, HealthOfGpus) {
  const auto with = [](const GpuHealth& health) {
    auto ranks = healthy_ranks(2);
    ranks[0].gpu_health = {GpuHealth{}};
    ranks[1].gpu_health = {health};
    return ranks;
  };
  EXPECT_TRUE(find_problems(with({"driver 580", 0, false, false, {}})).empty());
  expect_only(with({"", 3, false, false, {}}), true, {"node7: GPU 0000:1b:00.0", "3 uncorrected memory errors"});
  expect_only(with({"", 0, true, true, {}}), true, {"could not remap a faulty row", "replace"});
  expect_only(with({"", 0, true, false, {}}), false, {"next reset"});
  expect_only(with({"", 0, false, false, {"HW Thermal Slowdown"}}), true, {"0000:1b:00.0", "HW Thermal Slowdown"});
  expect_only(with({"", 0, false, false, {"SW Thermal Slowdown"}}), false, {"SW Thermal Slowdown"});
}

// An nvidia-smi report with the section headings of drivers 510 to 580.
constexpr const char* kReport = R"(
==============NVSMI LOG==============

Timestamp                                 : Sun Nov 22 12:00:00 2026
Driver Version                            : 580.95.05
Attached GPUs                             : 2
GPU 00000000:1B:00.0
    Performance State                     : P0
    Clocks Event Reasons
        Idle                              : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Active
            HW Power Brake Slowdown       : Not Active
        SW Thermal Slowdown               : Not Active
    Clocks Event Reasons Counters
        SW Thermal Slowdown               : 1234 us
        HW Thermal Slowdown               : 0 us
    ECC Errors
        Volatile
            SRAM Correctable              : 7
            SRAM Uncorrectable Parity     : 0
            SRAM Uncorrectable SEC-DED    : 1
            DRAM Correctable              : 177
            DRAM Uncorrectable            : 2
        Aggregate
            SRAM Uncorrectable Parity     : 50
            DRAM Uncorrectable            : 60
    Remapped Rows
        Correctable Error                 : 1
        Uncorrectable Error               : 0
        Pending                           : Yes
        Remapping Failure Occurred        : No

GPU 00000000:2B:00.0
    Clocks Throttle Reasons
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Not Active
    ECC Errors
        Volatile
            DRAM Uncorrectable            : N/A
    Remapped Rows
        Pending                           : No
        Remapping Failure Occurred        : Yes
)";

TEST(GpuHealthTest, ReadsTheReport) {
  const auto gpus = parse_gpu_health("00000000:1B:00.0, 580.95.05, 1980 MHz, 700.00 W\n", kReport);
  ASSERT_EQ(gpus.size(), 2u);
  const GpuHealth& ill = gpus.at("0000:1b:00.0");
  EXPECT_EQ(ill.setting, "driver 580.95.05, up to 1980 MHz, 700.00 W");
  EXPECT_EQ(ill.uncorrected_errors, 3);
  EXPECT_TRUE(ill.remapping_pending);
  EXPECT_FALSE(ill.remapping_failed);
  EXPECT_EQ(ill.slowdowns, std::vector<std::string>{"HW Thermal Slowdown"});
  const GpuHealth& other = gpus.at(gpu_health_key("0000:2B:00.0"));
  EXPECT_EQ(other.setting, "");
  EXPECT_EQ(other.uncorrected_errors, 0);
  EXPECT_FALSE(other.remapping_pending);
  EXPECT_TRUE(other.remapping_failed);
  EXPECT_TRUE(other.slowdowns.empty());
  EXPECT_TRUE(parse_gpu_health("", "NVIDIA-SMI has failed\n").empty());
}

TEST(DoctorChecks, PeersOutOfReach) {
  auto ranks = healthy_ranks(2);
  ranks[0].pairs_without_peer_access = {"0 and 1", "0 and 3"};
  expect_only(ranks, false, {"0 and 1, 0 and 3", "topo"});
}

TEST(DoctorChecks, Limits) {
  auto ranks = healthy_ranks(2);
  ranks[0].open_files_limit = 1024;
  expect_only(ranks, false, {"1024 files", "at least 4096", "ulimit -n"});
  ranks = healthy_ranks(2);
  ranks[0].locked_memory_limit = 64 * 1024;
  expect_only(ranks, false, {"64 KiB", "ulimit -l"});
  ranks = healthy_ranks(1);
  ranks[0].locked_memory_limit = 64 * 1024;
  EXPECT_TRUE(find_problems(ranks).empty());  // A single rank communicates with nobody.
}

TEST(DoctorChecks, SharedMemoryHindersRanksOfOneHostOnGpus) {
  for (const int count : {1, 2}) {
    auto ranks = healthy_ranks(count);
    ranks[0].shared_memory_bytes = kGiB / 16;
    EXPECT_TRUE(find_problems(ranks).empty());
    ranks[0].shared_memory_bytes = kGiB / 16 - 1;
    expect_only(ranks, count > 1, {"/dev/shm has 64 MiB", "--shm-size"});
  }
}

TEST(DoctorChecks, MoreThreadsThanCores) {
  auto ranks = healthy_ranks(4);
  for (RankFacts& r : ranks) r.threads = 5;
  EXPECT_TRUE(find_problems(ranks).empty());  // The program itself chose the number of threads.
  for (RankFacts& r : ranks) r.omp_num_threads_is_set = true;
  expect_only(ranks, false, {"OMP_NUM_THREADS=5", "4 ranks", "16 cores", "set it to at most 4"});
  for (RankFacts& r : ranks) r.threads = 4;
  EXPECT_TRUE(find_problems(ranks).empty());
}

TEST(DoctorChecks, RanksThatDiffer) {
  auto ranks = healthy_ranks(2);
  ranks[1].gpus.clear();
  expect_only(ranks, true, {"rank 0", "rank 1", "none"});
  ranks = healthy_ranks(2);
  ranks[1].host = "node8";
  ranks[1].local_rank = 0;
  ranks[1].versions["nccl"] = "2.27.1";
  expect_only(ranks, false, {"node8", "2.27.1", "2.28.9 on node7"});
  EXPECT_EQ(count_hosts(ranks), 2);
}

TEST(DoctorFacts, JsonComesBack) {
  RankFacts facts = healthy_ranks(2)[1];
  facts.pairs_without_peer_access = {"0 and 1"};
  facts.open_files_limit = RankFacts::kUnlimited;
  facts.gpu_health = {{"driver 580", 1, true, false, {"HW Slowdown"}}};
  facts.disk = {.dir = "/scratch", .error = "full", .free_bytes = 3};
  const nlohmann::json json = facts;
  EXPECT_EQ(nlohmann::json(nlohmann::json::parse(json.dump()).get<RankFacts>()), json);
  EXPECT_EQ(json["gpus"][0]["name"], "NVIDIA H200");
}

}  // namespace
}  // namespace octavo

// The facts about each rank that `octavo doctor` reports and checks.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/stream.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

// Facts about a GPU that nvidia-smi reports and CUDA does not: memory errors, and why clocks are slow at the moment.
struct GpuHealth {
  std::string setting;             // Text such as "driver 580.95, up to 1980 MHz, 700 W". Empty if unknown.
  int64_t uncorrected_errors = 0;  // Uncorrected memory errors since the last reset.
  bool remapping_pending = false;  // Whether the next reset will remap a row of the memory.
  bool remapping_failed = false;   // Whether remapping a faulty row failed.
  // Reasons for slow clocks with nvidia-smi's names, such as "HW Thermal Slowdown".
  std::vector<std::string> slowdowns;
};

// A rank's view of the checkpoint directory.
struct DiskFacts {
  std::string dir;         // Existing directory. Directories below it may still have to be created.
  std::string error;       // Reason why the directory is not writable. Empty if it is writable.
  int64_t free_bytes = 0;  // Bytes that this user can still write.
};

// Facts about one rank, known without measuring.
struct RankFacts {
  static constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

  int rank = 0;
  int local_rank = 0;  // Number of the rank among the ranks of its host.
  int local_size = 1;
  std::string host;
  std::string processor;  // Name such as "AMD EPYC 9654 96-Core Processor". Empty if unknown.
  int cores = 1;          // Number of cores of the host.
  int threads = 1;        // Number of CPU threads of this rank.
  bool omp_num_threads_is_set = false;
  std::string product_kernels;  // Matmul kernels of the CPU, as named in kernels/matmul/sgemm.h.
  int64_t memory_bytes = 0;
  int64_t memory_available_bytes = 0;
  int64_t shared_memory_bytes = kUnlimited;  // Size of /dev/shm. kUnlimited if /dev/shm does not exist.
  int64_t open_files_limit = kUnlimited;     // Soft limit of open files (RLIMIT_NOFILE).
  int64_t locked_memory_limit = kUnlimited;  // Soft limit of locked memory in bytes (RLIMIT_MEMLOCK).
  bool has_cuda = false;                     // Whether the build has CUDA.
  int driver_cuda = 0;                       // CUDA version that the driver supports, as in CudaVersions.
  int runtime_cuda = 0;                      // CUDA version of the runtime, as in CudaVersions.
  int gpus_visible = 0;                      // Number of GPUs that this process sees.
  // The rank's GPU comes first. A rank that is alone on its host lists all GPUs of the host.
  std::vector<GpuInfo> gpus;
  std::vector<GpuHealth> gpu_health;  // Health of each element of `gpus`.
  int planned_ranks = 0;              // Number of ranks of a future run on this host. 0 if not given.
  int64_t memory_errors = 0;          // Uncorrected errors of the host's memory since boot.
  DiskFacts disk;                     // Facts about the disk. `dir` is empty if no disk was to be checked.
  std::vector<std::string> pairs_without_peer_access;  // Pairs of GPUs such as "0 and 3", with CUDA's numbers.
  std::map<std::string, std::string> versions;         // Versions of libraries by name.
};

// Returns the facts of all ranks, in rank order, on every rank. Creates a CUDA context on the GPUs that it examines.
// `planned_ranks` is RankFacts::planned_ranks. `disk` is the checkpoint directory, which need not exist; empty if there
// is none. A collective.
std::vector<RankFacts> gather_facts(int planned_ranks, const std::string& disk, ProcessGroup& group);

// Converts a PCI bus id that CUDA or nvidia-smi prints to the form of the keys below, "0000:1b:00.0".
std::string gpu_health_key(const std::string& bus_id);

// Parses two outputs of nvidia-smi. `settings` is CSV (bus, driver, clock, power), and `report` is the output of
// nvidia-smi -q -d ECC,ROW_REMAPPER,PERFORMANCE, whose headings differ between drivers.
std::map<std::string, GpuHealth> parse_gpu_health(std::string_view settings, std::string_view report);

// Conversions of the facts to and from JSON. The keys are the names of the members.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GpuInfo, name, pci_bus_id, uuid, compute_major, compute_minor, total_bytes,
                                   free_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GpuHealth, setting, uncorrected_errors, remapping_pending, remapping_failed,
                                   slowdowns)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DiskFacts, dir, error, free_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankFacts, rank, local_rank, local_size, host, processor, cores, threads,
                                   omp_num_threads_is_set, product_kernels, memory_bytes, memory_available_bytes,
                                   shared_memory_bytes, open_files_limit, locked_memory_limit, has_cuda, driver_cuda,
                                   runtime_cuda, gpus_visible, gpus, gpu_health, planned_ranks, memory_errors, disk,
                                   pairs_without_peer_access, versions)

}  // namespace octavo

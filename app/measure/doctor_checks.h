// The checks of `octavo doctor`. They are pure functions from the facts of each rank to sentences, so that tests do not
// need a broken machine.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "app/measure/gpu_health.h"
#include "app/plan/machine_rates.h"
#include "core/stream.h"

namespace octavo {

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

struct Finding {
  bool prevents_training = false;  // Whether the problem prevents training. Otherwise it is a warning.
  std::string text;                // One sentence that says what was found, where, and what to do.
};

// Returns the problems of all ranks. `ranks` has every rank of the run, in order. A problem of a host is returned once.
std::vector<Finding> find_problems(std::span<const RankFacts> ranks);

// Smallest acceptable rate of matmuls on the CPU, as a share of the rate of multiply-adds in registers. Good kernels
// reach 70% to 95%. Kernels for another processor, or cores that other processes use, reach at most half.
inline constexpr double kMinProductShare = 0.6;
std::vector<Finding> find_slow_products(std::span<const RankFacts> ranks, std::span<const MachineRates> rates);

// Returns whether every rank has a GPU that this program supports, so that rates are measured on GPUs.
bool all_have_gpus(std::span<const RankFacts> ranks);
// Returns whether two ranks use the same GPU, which NCCL refuses.
bool any_share_a_gpu(std::span<const RankFacts> ranks);
// Returns the number of hosts that the ranks are on.
int count_hosts(std::span<const RankFacts> ranks);

}  // namespace octavo

// The checks of `octavo doctor`: pure functions from the facts of each rank to sentences, so that they are tested
// without a machine that is broken.
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

// The directory of checkpoints as one rank sees it.
struct DiskFacts {
  std::string dir;         // An existing directory. Directories below it may not exist yet.
  std::string error;       // Reason why nothing can be written there. Empty if it is writable.
  int64_t free_bytes = 0;  // Free bytes for this user.
};

// Facts about one rank before it measures anything.
struct RankFacts {
  static constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

  int rank = 0;
  int local_rank = 0;  // Rank among the ranks of its host.
  int local_size = 1;
  std::string host;
  std::string processor;  // "AMD EPYC 9654 96-Core Processor". Empty if the system does not say.
  int cores = 1;          // Cores of the host.
  int threads = 1;        // Threads of this rank's CPU work.
  bool omp_num_threads_is_set = false;
  std::string product_kernels;  // Matmul kernels of the CPU, as kernels/matmul/sgemm.h names them.
  int64_t memory_bytes = 0;
  int64_t memory_available_bytes = 0;
  int64_t shared_memory_bytes = kUnlimited;  // Size of /dev/shm. kUnlimited if there is none.
  int64_t open_files_limit = kUnlimited;     // Soft RLIMIT_NOFILE.
  int64_t locked_memory_limit = kUnlimited;  // Soft RLIMIT_MEMLOCK in bytes.
  bool has_cuda = false;                     // Whether the build has CUDA.
  int driver_cuda = 0;                       // Version as in CudaVersions.
  int runtime_cuda = 0;                      // Version as in CudaVersions.
  int gpus_visible = 0;                      // Number of GPUs that this process sees.
  std::vector<GpuInfo> gpus;  // GPUs, the one that it uses first. A rank that is alone on its host inspects all.
  std::vector<GpuHealth> gpu_health;                   // Health of each GPU.
  int planned_ranks = 0;                               // Ranks of a future run on this host. 0 means not stated.
  int64_t memory_errors = 0;                           // Uncorrected errors of the host's memory since its start.
  DiskFacts disk;                                      // Has no dir unless it was requested.
  std::vector<std::string> pairs_without_peer_access;  // Pairs such as "0 and 3", as CUDA numbers them.
  std::map<std::string, std::string> versions;         // Versions of libraries by name.
};

struct Finding {
  bool hinders = false;  // Whether it prevents training. Otherwise it is a warning.
  std::string text;      // One sentence that says where, what, and what to do.
};

// Returns the findings in the order of `ranks`, which has every rank of the run in order. A finding about a host is
// returned once.
std::vector<Finding> find_problems(std::span<const RankFacts> ranks);

// Least acceptable rate of matmuls on the CPU, as a share of the rate of multiply-adds in registers. Good kernels reach
// 70% to 95%. Kernels for another processor, or cores that other processes use, reach half or less.
inline constexpr double kLeastProductShare = 0.6;
std::vector<Finding> find_slow_products(std::span<const RankFacts> ranks, std::span<const MachineRates> rates);

// Returns whether every rank has a GPU for which this program has kernels, so that the rates are measured on GPUs.
bool all_have_gpus(std::span<const RankFacts> ranks);
// Returns whether two ranks use the same GPU, which NCCL refuses.
bool any_share_a_gpu(std::span<const RankFacts> ranks);
// Returns the number of machines that the ranks are on.
int count_hosts(std::span<const RankFacts> ranks);

}  // namespace octavo

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

// Where checkpoints are to be written, as one rank finds it.
struct DiskFacts {
  std::string dir;         // which is there; what is to be made below it may not be yet
  std::string error;       // why nothing can be written there; empty when it can
  int64_t free_bytes = 0;  // for this user
};

// Facts about one rank before it measures anything.
struct RankFacts {
  static constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

  int rank = 0;
  int local_rank = 0;  // among the ranks of its host
  int local_size = 1;
  std::string host;
  std::string processor;  // "AMD EPYC 9654 96-Core Processor"; empty where the system does not say
  int cores = 1;          // of the host
  int threads = 1;        // of this rank's CPU work
  bool omp_num_threads_is_set = false;
  std::string product_kernels;  // of the CPU, as kernels/matmul/sgemm.h names them
  int64_t memory_bytes = 0;
  int64_t memory_available_bytes = 0;
  int64_t shared_memory_bytes = kUnlimited;            // size of /dev/shm; kUnlimited where there is none
  int64_t open_files_limit = kUnlimited;               // soft RLIMIT_NOFILE
  int64_t locked_memory_limit = kUnlimited;            // soft RLIMIT_MEMLOCK, bytes
  bool has_cuda = false;                               // of the build
  int driver_cuda = 0;                                 // as in CudaVersions
  int runtime_cuda = 0;                                // as in CudaVersions
  int gpus_visible = 0;                                // to this process
  std::vector<GpuInfo> gpus;                           // the one it uses first; a rank alone on its host looks at all
  std::vector<GpuHealth> gpu_health;                   // of each
  int planned_ranks = 0;                               // of a run to come on this host; 0: not said
  int64_t memory_errors = 0;                           // of the host's memory, uncorrected, since it was started
  DiskFacts disk;                                      // no dir where it was not asked for
  std::vector<std::string> pairs_without_peer_access;  // "0 and 3", as CUDA numbers them
  std::map<std::string, std::string> versions;         // of libraries, by name
};

struct Finding {
  bool hinders = false;  // training; a warning otherwise
  std::string text;      // one sentence: where, what, and what to do
};

// In the order of `ranks`, which is every rank of the run in rank order; what holds for a host is said once.
std::vector<Finding> find_problems(std::span<const RankFacts> ranks);

// Ranks on CPUs whose products come to less than this share of what their cores multiply and add in registers. Good
// kernels come to 70% to 95%; those for another processor, or cores that others use, to half and less.
inline constexpr double kLeastProductShare = 0.6;
std::vector<Finding> find_slow_products(std::span<const RankFacts> ranks, std::span<const MachineRates> rates);

// Every rank has a GPU that this program has kernels for: what the rates are measured on.
bool all_have_gpus(std::span<const RankFacts> ranks);
// Two ranks use the same GPU, which NCCL refuses.
bool any_share_a_gpu(std::span<const RankFacts> ranks);
// Machines that the ranks are on.
int count_hosts(std::span<const RankFacts> ranks);

}  // namespace octavo

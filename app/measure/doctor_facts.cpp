#include "app/measure/doctor_facts.h"

#include <omp.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "app/run/runtime.h"
#include "build_config.h"
#include "core/error.h"
#include "kernels/matmul.h"
#include "kernels/sdpa.h"
#include "kernels/sgemm.h"
#include "parallel/communicator.h"

namespace octavo {

namespace {

// The text behind "KEY: " in a file of the kernel's such as /proc/meminfo; empty when it has none.
std::string kernel_value(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (!line.starts_with(key) || colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

int64_t memory_bytes(const std::string& key) {
  return std::strtoll(kernel_value("/proc/meminfo", key).c_str(), nullptr, 10) * 1024;
}

int64_t soft_limit(decltype(RLIMIT_NOFILE) resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return RankFacts::kUnlimited;
  return static_cast<int64_t>(limit.rlim_cur);
}

int64_t shared_memory_bytes() {
  struct statvfs fs {};
  if (statvfs("/dev/shm", &fs) != 0) return RankFacts::kUnlimited;
  return static_cast<int64_t>(fs.f_blocks) * static_cast<int64_t>(fs.f_frsize);
}

// "driver 580.95.05, up to 1980 MHz, 700 W" from nvidia-smi; empty where that cannot tell.
std::string gpu_setting(const std::string& pci_bus_id) {
  const std::string command = fmt::format(
      "nvidia-smi --id={} --query-gpu=driver_version,clocks.max.sm,power.limit --format=csv,noheader 2>/dev/null",
      pci_bus_id);
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  char line[256] = {};
  char driver[64] = {};
  char clock[64] = {};
  char power[64] = {};
  if (!pipe || std::fgets(line, sizeof(line), pipe.get()) == nullptr) return "";
  if (std::sscanf(line, "%63[^,], %63[^,], %63[^,\n]", driver, clock, power) != 3) return "";
  return fmt::format("driver {}, up to {}, {}", driver, clock, power);
}

void add_gpus(RankFacts& facts, const ProcessGroup& group) {
  const CudaVersions cuda = cuda_versions();
  facts.driver_cuda = cuda.driver;
  facts.runtime_cuda = cuda.runtime;
  facts.gpus_visible = cuda_device_count();
  if (facts.gpus_visible == 0) return;
  const int own = choose_gpu(group);
  facts.gpus.push_back(gpu_info(own));
  for (int other = 0; other < facts.gpus_visible; ++other) {
    if (other != own && group.local_size() == 1) facts.gpus.push_back(gpu_info(other));
  }
  for (const GpuInfo& gpu : facts.gpus) facts.gpu_settings.push_back(gpu_setting(gpu.pci_bus_id));
  if (group.local_rank() > 0) return;
  for (int i = 0; i < facts.gpus_visible; ++i) {
    for (int j = i + 1; j < facts.gpus_visible; ++j) {
      if (can_access_peer(i, j) && can_access_peer(j, i)) continue;
      facts.pairs_without_peer_access.push_back(fmt::format("{} and {}", i, j));
    }
  }
}

std::map<std::string, std::string> library_versions() {
  std::map<std::string, std::string> versions{{"octavo", kVersion}, {"mpi", mpi_version()}};
  if (!kHasCuda) return versions;
  const CudaVersions cuda = cuda_versions();
  const auto text = [](int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); };
  if (cuda.driver > 0) versions["cuda_driver"] = text(cuda.driver);
  versions["cuda_runtime"] = text(cuda.runtime);
  versions["cublaslt"] = cublaslt_version();
  versions["cudnn"] = cudnn_version();
  versions["nccl"] = nccl_version();
  return versions;
}

RankFacts facts_of(const ProcessGroup& group, int threads) {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  RankFacts facts;
  facts.rank = group.rank();
  facts.local_rank = group.local_rank();
  facts.local_size = group.local_size();
  facts.host = host;
  facts.processor = kernel_value("/proc/cpuinfo", "model name");
  facts.cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  facts.threads = threads;
  facts.omp_num_threads_is_set = std::getenv("OMP_NUM_THREADS") != nullptr;
  facts.product_kernels = cpu::sgemm_kernels();
  facts.memory_bytes = memory_bytes("MemTotal");
  facts.memory_available_bytes = memory_bytes("MemAvailable");
  facts.shared_memory_bytes = shared_memory_bytes();
  facts.open_files_limit = soft_limit(RLIMIT_NOFILE);
  facts.locked_memory_limit = soft_limit(RLIMIT_MEMLOCK);
  facts.has_cuda = kHasCuda;
  facts.versions = library_versions();
  add_gpus(facts, group);
  return facts;
}

}  // namespace

std::vector<RankFacts> gather_facts(ProcessGroup& group) {
  const int threads = choose_threads(group);
  nlohmann::json mine;
  group.agree([&] { mine = facts_of(group, threads); });
  std::vector<RankFacts> facts;
  for (const std::string& text : group.all_gather(mine.dump())) {
    facts.push_back(nlohmann::json::parse(text).get<RankFacts>());
  }
  return facts;
}

}  // namespace octavo

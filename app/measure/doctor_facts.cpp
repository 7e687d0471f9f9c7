#include "app/measure/doctor_facts.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <sstream>

#include "app/process/host_memory.h"
#include "app/process/runtime.h"
#include "build_config.h"
#include "core/error.h"
#include "core/files/input_file.h"
#include "core/files/output_file.h"
#include "core/format.h"
#include "kernels/attention/sdpa.h"
#include "kernels/matmul/matmul.h"
#include "kernels/matmul/sgemm.h"
#include "parallel/communicator.h"
#include "parallel/ranks/machines.h"

namespace octavo {

namespace {

std::string output_of(const char* command) {
  std::string text;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command, "r"), pclose);
  char piece[4096];
  while (pipe && std::fgets(piece, sizeof(piece), pipe.get()) != nullptr) text += piece;
  return text;
}

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
}

void parse_settings(std::string_view settings, std::map<std::string, GpuHealth>& gpus) {
  std::istringstream lines{std::string(settings)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream text(line);
    std::vector<std::string> fields;
    for (std::string field; std::getline(text, field, ',');) fields.push_back(trimmed(field));
    if (fields.size() < 4) continue;
    gpus[gpu_health_key(fields[0])].setting = fmt::format("driver {}, up to {}, {}", fields[1], fields[2], fields[3]);
  }
}

void read_line(const std::string& section, const std::string& key, const std::string& value, GpuHealth& gpu) {
  const bool uncorrectable = key.find("Uncorrectable") != std::string::npos;
  if (section == "Volatile" && uncorrectable) gpu.uncorrected_errors += std::strtoll(value.c_str(), nullptr, 10);
  if (section == "Remapped Rows" && key == "Pending") gpu.remapping_pending = value == "Yes";
  if (section == "Remapped Rows" && key == "Remapping Failure Occurred") gpu.remapping_failed = value == "Yes";
  // "HW Slowdown" is skipped, because it is set with any of the specific HW reasons.
  const bool slows = key.ends_with("Slowdown") && key != "HW Slowdown";
  if (slows && value == "Active") gpu.slowdowns.push_back(key);
}

// Returns the name of the CPU. Empty if it is unknown.
std::string processor_name() {
  std::istringstream file(read_system_file("/proc/cpuinfo"));
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (line.starts_with("model name") && colon != std::string::npos) return trimmed(line.substr(colon + 1));
  }
  return "";
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

// Returns the number of errors that the host's memory controllers could not correct.
int64_t memory_errors() {
  std::error_code error;
  int64_t errors = 0;
  for (std::filesystem::directory_iterator it("/sys/devices/system/edac/mc", error), end; !error && it != end;
       it.increment(error)) {
    errors += std::atoll(read_system_file(it->path() / "ue_count").c_str());
  }
  return errors;
}

// Returns `dir`, or its nearest ancestor that exists.
std::string existing_directory(const std::string& dir) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(dir, error);
  while (path.has_relative_path() && !std::filesystem::is_directory(path, error)) path = path.parent_path();
  return path.string();
}

DiskFacts look_at_disk(const std::string& dir, int rank) {
  DiskFacts disk;
  disk.dir = existing_directory(dir);
  struct statvfs fs {};
  if (statvfs(disk.dir.c_str(), &fs) == 0) {
    disk.free_bytes = static_cast<int64_t>(fs.f_bavail) * static_cast<int64_t>(fs.f_frsize);
  }
  try {
    OutputFile file(fmt::format("{}/.octavo_doctor_{}_{}", disk.dir, rank, getpid()));
    file.write(std::string(4096, 'o'));
    file.finish();
  } catch (const Error& failure) {
    disk.error = failure.what();
  }
  return disk;
}

// Returns the health of each GPU by bus id. Values that nvidia-smi does not print keep their defaults. Empty if
// nvidia-smi does not exist. Takes one or two seconds.
std::map<std::string, GpuHealth> read_gpu_health() {
  const std::string settings = output_of(
      "nvidia-smi --query-gpu=pci.bus_id,driver_version,clocks.max.sm,power.limit --format=csv,noheader 2>/dev/null");
  if (settings.empty()) return {};
  return parse_gpu_health(settings, output_of("nvidia-smi -q -d ECC,ROW_REMAPPER,PERFORMANCE 2>/dev/null"));
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
  std::map<std::string, GpuHealth> health = read_gpu_health();
  for (const GpuInfo& gpu : facts.gpus) facts.gpu_health.push_back(health[gpu_health_key(gpu.pci_bus_id)]);
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
  versions["flash_attention"] = kHasFlashAttention ? "3" : "none";
  versions["nccl"] = nccl_version();
  return versions;
}

RankFacts facts_of(int planned_ranks, const std::string& disk, const ProcessGroup& group, int threads) {
  RankFacts facts;
  facts.rank = group.rank();
  facts.local_rank = group.local_rank();
  facts.local_size = group.local_size();
  facts.host = host_name();
  facts.processor = processor_name();
  facts.cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  facts.threads = threads;
  facts.omp_num_threads_is_set = std::getenv("OMP_NUM_THREADS") != nullptr;
  facts.product_kernels = cpu::sgemm_kernels();
  const HostMemory memory = host_memory(group.local_size());
  facts.memory_bytes = memory.total_bytes;
  facts.memory_available_bytes = memory.available_bytes;
  facts.shared_memory_bytes = shared_memory_bytes();
  facts.open_files_limit = soft_limit(RLIMIT_NOFILE);
  facts.locked_memory_limit = soft_limit(RLIMIT_MEMLOCK);
  facts.has_cuda = kHasCuda;
  facts.versions = library_versions();
  facts.planned_ranks = planned_ranks;
  facts.memory_errors = memory_errors();
  if (!disk.empty()) facts.disk = look_at_disk(disk, group.rank());
  add_gpus(facts, group);
  return facts;
}

}  // namespace

// nvidia-smi prints eight digits of the PCI domain, and CUDA four.
std::string gpu_health_key(const std::string& bus_id) {
  constexpr size_t kLength = 12;
  return lower_case(bus_id.size() > kLength ? bus_id.substr(bus_id.size() - kLength) : bus_id);
}

std::map<std::string, GpuHealth> parse_gpu_health(std::string_view settings, std::string_view report) {
  std::map<std::string, GpuHealth> gpus;
  parse_settings(settings, gpus);
  std::istringstream lines{std::string(report)};
  GpuHealth* gpu = nullptr;
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(" : ");
    if (line.starts_with("GPU ")) {
      gpu = &gpus[gpu_health_key(trimmed(line.substr(4)))];
    } else if (colon == std::string::npos) {
      section = trimmed(line);
    } else if (gpu != nullptr) {
      read_line(section, trimmed(line.substr(0, colon)), trimmed(line.substr(colon + 3)), *gpu);
    }
  }
  return gpus;
}

std::vector<RankFacts> gather_facts(int planned_ranks, const std::string& disk, ProcessGroup& group) {
  const int threads = choose_threads(group);
  nlohmann::json mine;
  group.throw_on_all_ranks([&] { mine = facts_of(planned_ranks, disk, group, threads); });
  std::vector<RankFacts> facts;
  for (const std::string& text : group.all_gather(mine.dump())) {
    facts.push_back(nlohmann::json::parse(text).get<RankFacts>());
  }
  return facts;
}

}  // namespace octavo

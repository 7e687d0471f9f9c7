#include "app/process/runtime.h"

#include <omp.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include "app/config/config_check.h"
#include "app/process/cores.h"
#include "core/error.h"
#include "core/files/checksum.h"
#include "core/format.h"
#include "core/log.h"
#include "core/profiler.h"
#include "kernels/attention/sdpa.h"
#include "kernels/matmul/matmul.h"
#include "parallel/ranks/start_checks.h"

namespace octavo {

namespace {

// Smallest loop that is divided among threads: about 50 microseconds of work for one thread.
constexpr double kMinSharedWork = 1 << 19;

Device choose_device(const Config& config, const ProcessGroup& group) {
  if (config.device == DeviceChoice::kCpu) return Device::kCpu;
  if (config.device == DeviceChoice::kCuda) return Device::kCuda;
  if (cuda_device_count() == 0) return Device::kCpu;
  // Queries only this rank's own GPU, because a query creates a CUDA context, which takes time and memory.
  const GpuInfo gpu = gpu_info(choose_gpu(group));
  if (!has_kernels_for(gpu)) log_warning("running on the CPU: {} is not a Hopper GPU", gpu.name);
  return has_kernels_for(gpu) ? Device::kCuda : Device::kCpu;
}

// Returns the cores that this process may use as a text. The texts of two processes are equal exactly if they share the
// same cores of one machine.
std::string core_set(int& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) {
    cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
    return "all";
  }
  cores = CPU_COUNT(&set);
  std::string text = host_name();
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) text += fmt::format(" {}", i);
  }
  return text;
}

// Returns the config as lines "section.key value".
std::string settings(const Config& config) {
  std::string lines;
  const nlohmann::json flat = to_json(config).flatten();
  for (const auto& [path, value] : flat.items()) {
    std::string key = path.substr(1);
    std::replace(key.begin(), key.end(), '/', '.');
    lines += fmt::format("{} {}\n", key, value.dump());
  }
  return lines;
}

}  // namespace

std::string host_name() {
  char host[256] = {};
  const bool has_name = gethostname(host, sizeof(host) - 1) == 0 && host[0] != '\0';
  return has_name ? host : "localhost";
}

int choose_threads(ProcessGroup& group) {
  const std::optional<WidenedBinding> wider = widen_to_share(group.local_rank(), group.local_size());
  if (wider && group.is_root()) {
    log_info(
        "mpirun bound a rank to {} of {} cores by default; it uses its share of {} cores instead (--bind-to or "
        "OMP_NUM_THREADS change that)",
        wider->from_cores, wider->machine_cores, wider->to_cores);
  }
  int cores = 1;
  const std::string set = core_set(cores);
  const uint64_t mine = checksum(set.data(), std::ssize(set));
  const std::vector<uint64_t> all = group.all_gather(mine);
  const auto sharing = static_cast<int>(std::count(all.begin(), all.end(), mine));
  if (std::getenv("OMP_NUM_THREADS") == nullptr) return std::max(1, cores / sharing);
  // Limit, because OpenMP keeps its table of threads on the stack, and a larger one may not fit.
  constexpr int kMaxThreads = 4096;
  const int threads = omp_get_max_threads();
  group.agree([&] {
    CHECK_INPUT(threads <= kMaxThreads, "OMP_NUM_THREADS is {}, expected an integer from 1 to {}", threads,
                kMaxThreads);
  });
  return threads;
}

// A launcher shows each rank either all GPUs of the machine or only its own.
int choose_gpu(const ProcessGroup& group) {
  const int gpus = cuda_device_count();
  CHECK_INPUT(gpus > 0, "device is cuda, but no GPU was found on this machine; use device: cpu, or check the driver");
  return group.local_rank() % gpus;
}

Runtime::Runtime(Config& config, ProcessGroup& group, StartupTimer* timer, const ChooseMesh& choose_mesh)
    : group_(group), parallel_(config.parallel), stream_(Stream::cpu()) {
  group.watchdog().set_timeout(config.parallel.timeout_s);
  group.agree([&] {
    const Device device = choose_device(config, group);
    resolve_device(config, device);
    if (device == Device::kCpu) return;
    gpu_ = choose_gpu(group);
    check_gpu(gpu_info(gpu_), config.precision);
    stream_ = Stream::cuda(gpu_);
  });
  check_same_settings(group, settings(config));
  if (stream_.is_cuda()) {
    const GpuInfo gpu = gpu_info(gpu_);
    check_own_gpu(group, gpu.uuid, fmt::format("GPU {} ({})", gpu.pci_bus_id, gpu.name));
    const std::string on = fmt::format("{}, cuBLASLt {}, cuDNN {}", gpu.name, cublaslt_version(), cudnn_version());
    tuning_ = std::make_unique<TuningFile>(stream_, group, on, tuning_path(on));
  }
  ranks_per_machine_ = group.all_reduce_max(group.local_size());
  const int threads = choose_threads(group);
  omp_set_num_threads(threads);
  set_least_shared_work(kMinSharedWork);
  stream_.set_deterministic(config.training.deterministic);
  if (timer != nullptr) timer->mark("device");
  if (choose_mesh && parallel_.chooses_replicas()) {
    const MeshChoice choice = choose_mesh(*this);
    parallel_.data_parallel_replicate = choice.shape.replicate;
    mesh_reason_ = choice.reason;
  }
  mesh_ = std::make_unique<Mesh>(parallel_, group, stream_);
  if (timer != nullptr) timer->mark(stream_.is_cuda() ? "NCCL" : "MPI");

  const std::string ranks = fmt::format("{} rank{}", group.size(), group.size() == 1 ? "" : "s");
  if (stream_.is_cuda()) {
    description_ = fmt::format("{} on {}", ranks, gpu_info(gpu_).name);
  } else {
    description_ = fmt::format("{} on cpu, {} thread{} each", ranks, threads, threads == 1 ? "" : "s");
    const auto online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
    if (group.is_root() && threads * group.local_size() < online && std::getenv("OMP_NUM_THREADS") == nullptr) {
      log_warning("using {} of {} cores, because the launcher bound the ranks; mpirun --bind-to none allows all cores",
                  threads * group.local_size(), online);
    }
  }
}

void Runtime::tune(const std::function<void()>& work) {
  if (tuning_) tuning_->tune(work);
}

double Runtime::sum_over_tokens(double value) {
  const bool counts = mesh_->tensor().rank() == 0 && mesh_->rank(Axis::kPipeline) == mesh_->shape().pipeline - 1;
  return group_.all_reduce_sum(counts ? value : 0);
}

RunMemory Runtime::allocate(const std::function<int64_t()>& planned) {
  std::optional<Arena> arena;
  const bool one_machine = group_.local_size() == group_.size();
  const bool registers = stream_.is_cuda() && parallel_.registers_memory(mesh_->shape(), one_machine);
  group_.agree_on_files("planning the memory", [&] {  // The plan opens the data files.
    const int64_t bytes = planned();
    if (registers) {
      arena.emplace(stream_.device(), allocate_for_collectives(bytes));
    } else {
      arena.emplace(stream_.device(), bytes);
    }
  });
  RunMemory memory{std::move(*arena), {}};
  if (registers) memory.registrations = mesh_->register_memory(memory.arena.buffer(), parallel_.nccl_memory);
  return memory;
}

std::string Runtime::describe() const { return description_; }

int64_t Runtime::available_bytes() const {
  return stream_.is_cuda() ? gpu_info(gpu_).free_bytes : share_of_host_memory().available_bytes;
}

HostMemory Runtime::share_of_host_memory() const {
  HostMemory memory = host_memory(group_.local_size());
  memory.total_bytes /= group_.local_size();
  memory.available_bytes /= group_.local_size();
  return memory;
}

double Runtime::memory_gib() const {
  if (stream_.is_cuda()) {
    const GpuInfo info = gpu_info(gpu_);
    return gib(info.total_bytes - info.free_bytes);
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return gib(usage.ru_maxrss * kKiB);
}

}  // namespace octavo

#include "app/process/setting.h"

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include "app/config/config_check.h"
#include "app/process/cores.h"
#include "build_config.h"
#include "core/commit.h"
#include "core/error.h"
#include "core/files/checksum.h"
#include "core/log.h"
#include "core/profiler.h"
#include "parallel/ranks/machines.h"
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

// Returns the config as lines "section.key value".
std::string settings(const Config& config) {
  std::string lines;
  const nlohmann::json flat = to_json(config).flatten();
  for (const auto& [path, value] : flat.items()) {
    std::string key = path.substr(1);
    std::ranges::replace(key, '/', '.');
    lines += fmt::format("{} {}\n", key, value.dump());
  }
  return lines;
}

}  // namespace

int choose_threads(ProcessGroup& group) {
  const std::optional<WidenedBinding> wider = widen_to_share(group.local_rank(), group.local_size());
  if (wider && group.is_root()) {
    log_info(
        "mpirun bound a rank to {} of {} cores by default; it uses its share of {} cores instead (--bind-to or "
        "OMP_NUM_THREADS change that)",
        wider->from_cores, wider->machine_cores, wider->to_cores);
  }
  const std::vector<Core> bound = cores_of(0);
  const int cores = bound.empty() ? static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)) : static_cast<int>(bound.size());
  // The texts of two ranks are equal exactly if the ranks share the same cores of one machine.
  std::string text = host_name();
  for (const Core& core : bound) text += fmt::format(" {}", core.number);
  const uint64_t mine = checksum(text.data(), std::ssize(text));
  const std::vector<uint64_t> all = group.all_gather(mine);
  const auto sharing = static_cast<int>(std::ranges::count(all, mine));
  if (std::getenv("OMP_NUM_THREADS") == nullptr) return std::max(1, cores / sharing);
  // OpenMP keeps its table of threads on the stack, where a larger table may not fit.
  constexpr int kMaxThreads = 4096;
  const int threads = omp_get_max_threads();
  group.throw_on_all_ranks([&] {
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

HostMemory share_of_host_memory(const ProcessGroup& group) {
  HostMemory memory = host_memory(group.local_size());
  memory.total_bytes /= group.local_size();
  memory.available_bytes /= group.local_size();
  return memory;
}

bool has_equal_nodes(const Machines& machines) {
  const auto count = std::ssize(machines.ranks(0));
  for (int machine = 0; machine < machines.count(); ++machine) {
    const std::vector<int>& ranks = machines.ranks(machine);
    const bool in_order = std::ssize(ranks) == count && ranks.front() == machine * count &&
                          ranks.back() == ranks.front() + static_cast<int>(count) - 1;
    if (!in_order) return false;
  }
  return true;
}

Setting observe_setting(Config config, ProcessGroup& group) {
  group.watchdog().set_timeout(config.parallel.timeout_s);
  Place place{.ranks = group.size()};
  GpuInfo gpu;
  group.throw_on_all_ranks([&] {
    place.device = choose_device(config, group);
    resolve_device(config, place.device);
    if (place.device == Device::kCpu) return;
    gpu = gpu_info(choose_gpu(group));
    check_gpu(gpu, config.precision);
  });
  check_same_settings(group, fmt::format("program {} commit {}\n", kVersion, build_commit()) + settings(config));
  if (place.device == Device::kCuda) {
    check_own_gpu(group, gpu.uuid, fmt::format("GPU {} ({})", gpu.pci_bus_id, gpu.name));
    place.multiprocessors = gpu.multiprocessors;
    place.memory_bytes = gpu.total_bytes;
    place.free_bytes = gpu.free_bytes;
  } else {
    place.free_bytes = share_of_host_memory(group).available_bytes;
  }
  place.ranks_per_node = group.all_reduce_max(group.local_size());
  place.equal_nodes = has_equal_nodes(Machines(group));
  place.threads = choose_threads(group);
  omp_set_num_threads(place.threads);
  set_least_shared_work(kMinSharedWork);
  MeshChoice mesh;
  group.throw_on_all_ranks([&] { mesh.shape = config.parallel.mesh_shape(group.size()); });
  return {std::move(config), place, std::move(mesh)};
}

}  // namespace octavo

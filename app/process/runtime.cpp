#include "app/process/runtime.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "core/log.h"
#include "kernels/attention/sdpa.h"
#include "kernels/matmul/matmul.h"

namespace octavo {

Runtime::Runtime(const Setting& setting, ProcessGroup& group, StartupTimer* timer)
    : group_(group),
      parallel_(setting.run.parallel),
      place_(setting.place),
      mesh_choice_(setting.mesh),
      gpu_(place_.device == Device::kCuda ? choose_gpu(group) : 0),
      stream_(Stream::cpu()) {
  group.throw_on_all_ranks([&] {
    if (place_.device == Device::kCuda) stream_ = Stream::cuda(gpu_);
  });
  stream_.set_deterministic(setting.run.training.deterministic);
  const std::string ranks = fmt::format("{} rank{}", group.size(), group.size() == 1 ? "" : "s");
  if (stream_.is_cuda()) {
    const std::string name = gpu_info(gpu_).name;
    description_ = fmt::format("{} on {}", ranks, name);
    const std::string on = fmt::format("{}, cuBLASLt {}, cuDNN {}", name, cublaslt_version(), cudnn_version());
    tuning_ = std::make_unique<TuningFile>(stream_, group, on, tuning_path(on));
  } else {
    const int threads = place_.threads;
    description_ = fmt::format("{} on cpu, {} thread{} each", ranks, threads, threads == 1 ? "" : "s");
    const auto online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
    if (group.is_root() && threads * group.local_size() < online && std::getenv("OMP_NUM_THREADS") == nullptr) {
      log_warning("using {} of {} cores, because the launcher bound the ranks; mpirun --bind-to none allows all cores",
                  threads * group.local_size(), online);
    }
  }
  if (timer != nullptr) timer->mark("device");
  for (const MeshAxis& axis : kMeshAxes) parallel_.*axis.configured = mesh_choice_.shape.*axis.size;
  mesh_ = std::make_unique<Mesh>(parallel_, group, stream_);
  if (timer != nullptr) timer->mark(stream_.is_cuda() ? "NCCL" : "MPI");
}

Place Runtime::place() const {
  Place now = place_;
  now.free_bytes = stream_.is_cuda() ? gpu_info(gpu_).free_bytes : share_of_host_memory(group_).available_bytes;
  return now;
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
  group_.throw_file_errors_on_all_ranks("planning the memory", [&] {  // The plan of an inference opens the data files.
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

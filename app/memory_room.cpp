#include "app/memory_room.h"

#include <algorithm>

namespace octavo {

namespace {

constexpr int64_t kMiB = 1 << 20;

// A run that was planned to take 98% of a GPU of 139.8 GiB ran out of memory inside NCCL.
constexpr int64_t kGpuMargin = 1536 * kMiB;
constexpr int64_t kCpuMarginShare = 20;

// What a GPU's memory holds besides the arena: the CUDA context with this program's kernels, cuBLASLt and cuDNN; from
// the second rank on, NCCL with its buffers, and what it takes to have memory registered.
struct OutsideArena {
  int64_t early = 0;  // by the time a run decides, at most
  int64_t later = 0;
  int64_t bytes() const { return early + later; }
};

// The sums are measured, what of them is early is assumed.
OutsideArena outside_arena(const MeshShape& mesh, bool registered) {
  constexpr OutsideArena kContext = {600 * kMiB, 100 * kMiB};       // the 1.8B on one H200: 60.3 GiB in use
  constexpr OutsideArena kNccl = {500 * kMiB, 500 * kMiB};          // the 8B on four, plain: 121.1 GiB in use
  constexpr OutsideArena kCommunicator = {500 * kMiB, 500 * kMiB};  // of each further axis
  constexpr int64_t kRegistered = 1500 * kMiB;  // the 8B on four: 103.9, 91.3 and 50.5 GiB in use, by the mode
  OutsideArena sum = kContext;
  const auto add = [&](const OutsideArena& more) { sum = {sum.early + more.early, sum.later + more.later}; };
  const int64_t axes = (mesh.replicate > 1 ? 1 : 0) + (mesh.shard > 1 ? 1 : 0) + (mesh.tensor > 1 ? 1 : 0);
  if (axes > 0) add(kNccl);
  for (int64_t axis = 1; axis < axes; ++axis) add(kCommunicator);
  if (registered) sum.later += kRegistered;
  return sum;
}

}  // namespace

PlannedDevice own_device(const Runtime& runtime) {
  const Stream& stream = runtime.stream();
  return {.device = stream.device(),
          .multiprocessors = stream.multiprocessors(),
          .memory_bytes = stream.is_cuda() ? gpu_info(runtime.gpu()).total_bytes : 0,
          .free_bytes = runtime.available_bytes(),
          .gpus_per_node = runtime.group().local_size()};
}

MemoryRoom memory_room(const Config& config, const MeshShape& mesh, const PlannedDevice& device) {
  if (device.device == Device::kCpu) {
    const int64_t available = device.free_bytes.value_or(device.memory_bytes);
    return {.available = available, .outside = 0, .margin = available / kCpuMarginShare};
  }
  const bool one_node = mesh.ranks() <= device.gpus_per_node;
  const OutsideArena outside = outside_arena(mesh, config.parallel.registers_memory(mesh, one_node));
  if (!device.free_bytes) return {.available = device.memory_bytes, .outside = outside.bytes(), .margin = kGpuMargin};
  // Less than a plan assumes may be taken early; then it is taken later.
  const int64_t available = std::min(*device.free_bytes, device.memory_bytes - outside.early);
  return {.available = available, .outside = outside.later, .margin = kGpuMargin};
}

MemoryRoom memory_room(const Config& config, const Runtime& runtime) {
  return memory_room(config, runtime.mesh().shape(), own_device(runtime));
}

}  // namespace octavo

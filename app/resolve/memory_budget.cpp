#include "app/resolve/memory_budget.h"

#include <algorithm>

#include "core/format.h"

namespace octavo {

namespace {

// Margin of a GPU. A run that was planned to use 98% of a GPU with 139.8 GiB ran out of memory inside NCCL.
constexpr int64_t kGpuMargin = 1536 * kMiB;
constexpr int64_t kCpuMarginShare = 20;

// Memory of a GPU outside of the arena, in bytes: the CUDA context with this program's kernels, cuBLASLt and cuDNN.
// With two or more ranks, NCCL with its buffers and the cost of registering memory are added.
struct OutsideArena {
  int64_t early = 0;  // Upper limit of what is allocated before a run decides.
  int64_t later = 0;
  int64_t bytes() const { return early + later; }
};

constexpr OutsideArena kContext = {445 * kMiB, 100 * kMiB};  // Memory of the CUDA context on one GPU.

// Returns the memory of NCCL for the ranks of the first axis. It depends on how NCCL connects the GPUs: measured were
// 1.4 GiB on two GPUs and 0.9 on four, and with registered memory 0.4 to 0.9 on two and 2.3 on four.
OutsideArena outside_of_nccl(int64_t ranks, bool registered) {
  if (!registered) return {900 * kMiB, 250 * kMiB};
  return ranks == 2 ? OutsideArena{450 * kMiB, 450 * kMiB} : OutsideArena{500 * kMiB, 1900 * kMiB};
}

// Returns the memory outside of the arena. The sums are measured; their division into early and later is an assumption.
OutsideArena outside_arena(const MeshShape& mesh, bool registered) {
  constexpr OutsideArena kCommunicator = {500 * kMiB, 500 * kMiB};  // Memory of each axis after the first.
  constexpr OutsideArena kStageLinks = {225 * kMiB, 225 * kMiB};    // Memory of one of MeshShape::link_colors().
  constexpr OutsideArena kOverlapping = {500 * kMiB, 500 * kMiB};   // Memory of the separate communicators of context
                                                                    // and shard (Mesh::connect).
  OutsideArena sum = kContext;
  const auto add = [&](const OutsideArena& more) { sum = {sum.early + more.early, sum.later + more.later}; };
  if (mesh.ranks() > 1) add(outside_of_nccl(mesh.ranks(), registered));
  for (int64_t color = 0; mesh.pipeline > 1 && color < mesh.link_colors(); ++color) add(kStageLinks);
  const auto axes = std::ranges::count_if(
      kMeshAxes, [&](const MeshAxis& axis) { return mesh.*axis.size > 1 && !axis.divides_blocks; });
  for (auto axis = axes; axis > 1; --axis) add(kCommunicator);
  if (mesh.context > 1) add(kOverlapping);
  return sum;
}

}  // namespace

Place as_planned(Place place) {
  const int64_t free = place.free_bytes.value_or(0);
  place.memory_bytes = place.device == Device::kCpu ? free : std::min(free + kContext.bytes(), place.memory_bytes);
  place.free_bytes.reset();
  return place;
}

MemoryBudget memory_budget(const ParallelConfig& parallel, const MeshShape& mesh, const Place& place) {
  if (place.device == Device::kCpu) {
    const int64_t available = place.free_bytes.value_or(place.memory_bytes);
    return {.available = available, .outside = 0, .margin = available / kCpuMarginShare};
  }
  const bool one_node = mesh.ranks() <= place.ranks_per_node;
  const OutsideArena outside = outside_arena(mesh, parallel.registers_memory(mesh, one_node));
  if (!place.free_bytes) return {.available = place.memory_bytes, .outside = outside.bytes(), .margin = kGpuMargin};
  // If less than expected has been allocated early, the rest will be allocated later.
  const int64_t available = std::min(*place.free_bytes, place.memory_bytes - outside.early);
  return {.available = available, .outside = outside.later, .margin = kGpuMargin};
}

}  // namespace octavo

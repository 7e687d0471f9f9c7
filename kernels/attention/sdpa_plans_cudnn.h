// Execution plans of cuDNN's attention, for heads that FlashAttention has no kernels for. A graph for each geometry and
// pass is built once with cuDNN's C++ frontend and cached with the stream.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "core/arena.h"
#include "core/stream.h"
#include "kernels/attention_shapes/sdpa_geometry.h"

struct cudnnContext;

namespace octavo::cuda {

struct SdpaPlan {
  struct Graph;
  SdpaPlan();
  ~SdpaPlan();
  SdpaPlan(const SdpaPlan&) = delete;
  SdpaPlan& operator=(const SdpaPlan&) = delete;

  // Returns the stream's workspace from byte `begin` on. Null if the plan needs none.
  void* workspace(int64_t begin, const Stream& stream) const;

  std::unique_ptr<Graph> graph;
  int64_t workspace_bytes = 0;
  // [batch] int32: the lengths of the sequences, for plans that need them.
  Buffer lengths;
};

class SdpaPlans {
 public:
  explicit SdpaPlans(Stream& stream);

  const SdpaPlan& forward(const SdpaGeometry& geometry);
  const SdpaPlan& backward(const SdpaGeometry& geometry, Stream& stream);
  // Queues the plan on the stream, and adds the plan's lengths to `pointers`.
  // Requires: `pointers` has the address of every other tensor of the plan.
  void execute(const SdpaPlan& plan, SdpaPointers& pointers, const SdpaShape& shape, void* workspace) const;

 private:
  enum class Pass : uint8_t { kForward, kBackward, kDeterministicBackward };
  struct Key {
    SdpaGeometry geometry;
    Pass pass;

    auto order() const { return std::tuple(geometry.order(), pass); }
    bool operator<(const Key& other) const { return order() < other.order(); }
  };
  struct Destroy {
    void operator()(cudnnContext* handle) const;
  };
  std::unique_ptr<cudnnContext, Destroy> handle_;
  std::map<Key, std::unique_ptr<SdpaPlan>> plans_;
};

}  // namespace octavo::cuda

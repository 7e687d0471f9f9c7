// The plans of cuDNN's attention: a graph for each geometry and pass, built once by its C++ frontend and kept with the
// stream.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "core/arena.h"
#include "kernels/attention/sdpa_geometry.h"

struct cudnnContext;

namespace octavo::cuda {

struct SdpaPlan {
  struct Graph;
  SdpaPlan();
  ~SdpaPlan();
  SdpaPlan(const SdpaPlan&) = delete;
  SdpaPlan& operator=(const SdpaPlan&) = delete;

  // That of the stream, from byte `begin` on; null where the plan needs none.
  void* workspace(int64_t begin, const Stream& stream) const;

  std::unique_ptr<Graph> graph;
  int64_t workspace_bytes = 0;
  Buffer lengths;  // [batch] int32, of queries and of keys: those that it takes where no sequence has padding
};

class SdpaPlans {
 public:
  explicit SdpaPlans(Stream& stream);

  const SdpaPlan& forward(const SdpaGeometry& geometry, SdpaLengths lengths);
  const SdpaPlan& backward(const SdpaGeometry& geometry, SdpaLengths lengths, Stream& stream);
  // Queued on the stream. `pointers`: of every tensor that the plan has.
  void execute(const SdpaPlan& plan, SdpaPointers& pointers, const SdpaShape& shape, void* workspace) const;

 private:
  enum class Pass : uint8_t { kForward, kBackward, kDeterministicBackward };
  struct Key {
    SdpaGeometry geometry;
    Pass pass;
    SdpaLengths lengths;

    auto order() const { return std::tuple(geometry.order(), pass, lengths); }
    bool operator<(const Key& other) const { return order() < other.order(); }
  };
  struct Destroy {
    void operator()(cudnnContext* handle) const;
  };
  std::unique_ptr<cudnnContext, Destroy> handle_;
  std::map<Key, std::unique_ptr<SdpaPlan>> plans_;
};

}  // namespace octavo::cuda

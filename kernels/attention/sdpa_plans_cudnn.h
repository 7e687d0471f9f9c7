// The plans of cuDNN's attention: a graph for each shape, layout and pass, built once by its C++ frontend and kept with
// the stream. q, k and v are strided views into what the caller has, so nothing is copied.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <type_traits>
#include <unordered_map>

#include "core/arena.h"
#include "kernels/attention/sdpa.h"

struct cudnnContext;

namespace octavo::cuda {

// Names of a graph's tensors.
enum SdpaTensor : int64_t { kQ = 1, kK, kV, kOut, kLse, kDOut, kDQ, kDK, kDV, kQueryLengths, kKeyLengths };
using SdpaPointers = std::unordered_map<int64_t, void*>;

// How far apart, in elements, sequences and the tokens of one lie.
struct Strides {
  int64_t sequence = 0;
  int64_t token = 0;
  auto operator<=>(const Strides&) const = default;
};

// What a graph is of. shape.seq_len counts queries; those of a piece see `keys` keys, of which the last are their own.
struct SdpaGeometry {
  SdpaShape shape;
  int64_t keys = 0;
  Strides q, kv, out;  // of the gradients as of the tensors, but for d_kv
  Strides d_kv;

  auto order() const {
    return std::tuple(shape.batch, shape.seq_len, shape.num_heads, shape.num_kv_heads, shape.head_dim, keys, q, kv, out,
                      d_kv);
  }
};

// The lengths that sequences have before their padding.
enum class SdpaLengths : uint8_t {
  kFull,     // no padding: all are as long as the geometry says
  kSquare,   // of each its own, as many queries as keys
  kAtTheEnd  // of each its own of queries and of keys, of which the last are the queries' own
};

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
  bool takes_lengths = false;  // of the sequences, [batch] int32, of queries and of keys
  Buffer lengths;              // those that it takes where no sequence has padding
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

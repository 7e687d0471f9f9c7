// Keys and values of the earlier tokens of sequences, for every layer. Text that is generated token by token reads them
// instead of computing them again. All sequences have the same number of tokens.
#pragma once

#include <vector>

#include "core/arena.h"
#include "core/stream.h"
#include "kernels/attention/cached_sdpa.h"
#include "model/architecture/config.h"

namespace octavo {

class KvCache {
 public:
  // Allocates the memory from the arena. `compute` is float32 or bfloat16.
  KvCache(const ModelConfig& config, int64_t sequences, int64_t capacity, DType compute, Arena& arena);

  int64_t sequences() const { return sequences_; }
  int64_t capacity() const { return capacity_; }  // Maximum number of tokens per sequence.
  int64_t length() const { return length_; }      // Number of tokens per sequence.
  const SdpaCache& layer(int64_t layer) const { return layers_[static_cast<size_t>(layer)]; }

  // Adds `tokens` to the length. Called after a forward has written their keys and values. Throws if the length would
  // exceed the capacity.
  void append(int64_t tokens);
  // Gives every sequence the tokens of the first one.
  void copy_first(Stream& stream);
  // Removes all tokens after the first `length`.
  void truncate(int64_t length);

 private:
  int64_t sequences_;
  int64_t capacity_;
  int64_t length_ = 0;
  std::vector<SdpaCache> layers_;
};

}  // namespace octavo

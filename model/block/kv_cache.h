// The keys and values of the tokens of sequences that are continued, of every layer: text that is generated a token at
// a time reads them in place of computing them again. All sequences have the same number of tokens.
#pragma once

#include <vector>

#include "core/arena.h"
#include "core/stream.h"
#include "kernels/attention/cached_sdpa.h"
#include "model/architecture/config.h"

namespace octavo {

class KvCache {
 public:
  // Takes its memory from the arena; `compute`: float32 or bfloat16.
  KvCache(const ModelConfig& config, int64_t sequences, int64_t capacity, DType compute, Arena& arena);

  int64_t sequences() const { return sequences_; }
  int64_t capacity() const { return capacity_; }  // tokens of a sequence
  int64_t length() const { return length_; }      // tokens that each sequence has
  const SdpaCache& layer(int64_t layer) const { return layers_[static_cast<size_t>(layer)]; }

  // A pass has written the keys and values of so many more tokens of each sequence. Throws beyond the capacity.
  void append(int64_t tokens);
  // Gives every sequence the tokens of the first one.
  void copy_first(Stream& stream);
  // Forgets what stands behind the first `length` tokens.
  void truncate(int64_t length);

 private:
  int64_t sequences_;
  int64_t capacity_;
  int64_t length_ = 0;
  std::vector<SdpaCache> layers_;
};

}  // namespace octavo

#include "model/block/kv_cache.h"

#include "core/error.h"

namespace octavo {

KvCache::KvCache(const ModelConfig& config, int64_t sequences, int64_t capacity, DType compute, Arena& arena)
    : sequences_(sequences), capacity_(capacity) {
  const auto allocate = [&](const char* name) {
    return arena.allocate(name, compute, {sequences, capacity, config.num_kv_heads * config.head_dim});
  };
  layers_.reserve(static_cast<size_t>(config.num_layers));
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const Tensor keys = allocate("cached keys");
    layers_.push_back({.keys = keys, .values = allocate("cached values")});
  }
}

void KvCache::append(int64_t tokens) {
  CHECK(tokens <= capacity_ - length_, "a cache of {} tokens has {}, so {} more are too many", capacity_, length_,
        tokens);
  length_ += tokens;
}

void KvCache::copy_first(Stream& stream) {
  for (const SdpaCache& layer : layers_) {
    for (const Tensor& all : {layer.keys, layer.values}) {
      const Tensor rows = all.view({sequences_ * capacity_, all.dim(2)});
      for (int64_t i = 1; i < sequences_; ++i) {
        stream.copy(rows.rows(i * capacity_, i * capacity_ + length_), rows.rows(0, length_));
      }
    }
  }
}

void KvCache::truncate(int64_t length) {
  CHECK(length >= 0 && length <= length_, "a cache of {} tokens is cut to {}", length_, length);
  length_ = length;
}

}  // namespace octavo

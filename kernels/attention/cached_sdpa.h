// Attention of new tokens that follow a cached prefix, for text generation (incremental decoding, Shazeer, arXiv
// 1911.02150, section 2.4), and its key/value cache. New token i of a sequence has position `position` + i:
//
//   s[j] = q_i . keys[j] / sqrt(head_dim) for 0 <= j <= position + i,   p = softmax(s),   out_i = sum_j p[j] values[j]
//
// Query head h reads key/value head h / (num_heads / num_kv_heads). Dtypes are float32 or bfloat16. head_dim is at most
// 256 on the CPU, and 32, 64 or 128 on GPUs. Arithmetic is float32. Queued on `stream`; deterministic. On GPUs rows
// start at multiples of 16 bytes.
#pragma once

#include "kernels/attention/sdpa.h"

namespace octavo {

// Cache of one layer. Both tensors are [sequences, capacity, num_kv_heads * head_dim]; row j is the token at position
// j.
struct SdpaCache {
  Tensor keys;  // Keys, with rotary embedding applied.
  Tensor values;
};

// Writes the keys and values of qkv to rows [position, position + seq_len) of the first `batch` sequences of the cache.
struct SdpaCacheAppend {
  SdpaShape shape;  // Shape of the new tokens.
  SdpaCache cache;  // Cache that the rows are written to.
  Tensor qkv;       // [batch * seq_len, qkv_width], with rotary embedding applied.
  int64_t position = 0;
};
void sdpa_cache_append(const SdpaCacheAppend& args, Stream& stream);

// Attention of the new tokens over the cache.
struct CachedSdpa {
  SdpaShape shape;  // Shape of the new tokens.
  Tensor out;       // = [batch * seq_len, num_heads * head_dim]
  // [batch * seq_len, qkv_width], with rotary embedding applied. Only the queries are read.
  Tensor qkv;
  SdpaCache cache;  // Cache that includes the keys and values of the new tokens.
  int64_t position = 0;
};
void cached_sdpa(const CachedSdpa& args, Stream& stream);

}  // namespace octavo

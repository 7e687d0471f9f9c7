// Attention of tokens that follow a cached prefix, as text is generated (incremental decoding, Shazeer, arXiv
// 1911.02150, section 2.4), and the cache. Token i of a sequence's new ones, which has position `position` + i:
//
//   s[j] = q_i . keys[j] / sqrt(head_dim) for 0 <= j <= position + i,   p = softmax(s),   out_i = sum_j p[j] values[j]
//
// Query head h reads key/value head h / (num_heads / num_kv_heads). Dtypes are float32 or bfloat16; head_dim at most
// 256 on the CPU, and 32, 64 or 128 on GPUs. Arithmetic is float32. Queued on `stream`; deterministic. On GPUs rows
// start at multiples of 16 bytes.
#pragma once

#include "kernels/attention/sdpa.h"

namespace octavo {

// Of one layer: [sequences, capacity, num_kv_heads * head_dim] each, row j for the token at position j.
struct SdpaCache {
  Tensor keys;  // rotated
  Tensor values;
};

// Rows `position` to `position` + seq_len of the first `batch` sequences of the cache = the keys and values of qkv.
struct SdpaCacheAppend {
  SdpaShape shape;  // of the new tokens
  SdpaCache cache;  // rows =
  Tensor qkv;       // [batch * seq_len, qkv_width], rotated
  int64_t position = 0;
};
void sdpa_cache_append(const SdpaCacheAppend& args, Stream& stream);

struct CachedSdpa {
  SdpaShape shape;  // of the new tokens
  Tensor out;       // = [batch * seq_len, num_heads * head_dim]
  Tensor qkv;       // [batch * seq_len, qkv_width], rotated; the queries are read
  SdpaCache cache;  // with the new tokens' keys and values
  int64_t position = 0;
};
void cached_sdpa(const CachedSdpa& args, Stream& stream);

}  // namespace octavo

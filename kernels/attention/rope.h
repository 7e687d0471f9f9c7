// Rotary position embedding (Su et al., arXiv 2104.09864) in Hugging Face's half-split convention. Within a head of
// size D, elements i and i + D/2 form a pair that is rotated by position * inv_freq[i], inv_freq[i] = theta^(-2i/D).
//
// Llama 3.1 scaling ("llama3" in Hugging Face's modeling_rope_utils), with wavelength w = 2 pi / inv_freq and
// original = original_max_position_embeddings:
//   if w < original / high_freq_factor: inv_freq is unchanged
//   if w > original / low_freq_factor: inv_freq / factor
//   otherwise: (1 - s) * inv_freq / factor + s * inv_freq,
//              s = (original / w - low_freq_factor) / (high_freq_factor - low_freq_factor)
#pragma once

#include <functional>
#include <optional>

#include "core/stream.h"
#include "kernels/fp8/fp8.h"

namespace octavo {

struct RopeScaling {
  double factor = 8.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_position_embeddings = 8192;

  bool operator==(const RopeScaling& other) const = default;
};

// Fills `host_table` [seq_len, head_dim] float32 in host memory. Row t holds the cosines of the head_dim/2 angles of
// position(t), then their sines. Without `position`, row t has position t. Computed in float64 and then rounded.
void rope_table(const Tensor& host_table, double theta, const std::optional<RopeScaling>& scaling,
                const std::function<int64_t(int64_t)>& position = {});

// Rotates the query and key heads of packed rows [q heads | k heads | v heads] in place. Value heads are unchanged.
// Token t is rotated by row t mod seq_len of `table`. `inverse` rotates by the negative angle, which is the backward
// pass. Arithmetic is float32. If `cast` is given, the op writes its FP8 operands instead of qkv, with the bits that
// quantize would compute from the rotated qkv. The content of qkv is then undefined. Queued on `stream`; deterministic.
struct Rope {
  Tensor qkv;    // in place [tokens, (num_heads + 2 * num_kv_heads) * head_dim], compute dtype
  Tensor table;  // [seq_len, head_dim] float32, from rope_table
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  bool inverse = false;
  // Optional [1] float32: = max(old value, max |qkv|) over the rotated q and k heads and the v heads. NaN is the
  // largest value.
  Tensor amax = {};
  Fp8Cast cast = {};  // Optional FP8 cast, written instead of qkv. May use `amax`.
};

// Returns whether one kernel rotates heads of this size and casts them on GPUs. Its tiles of 128 columns must consist
// of whole heads, and half a head of whole thread tiles of 8 columns. The cast of other heads is a second kernel.
inline constexpr bool rope_casts_heads_of(int64_t head_dim) { return head_dim % 16 == 0 && 128 % head_dim == 0; }
void rope(const Rope& args, Stream& stream);

}  // namespace octavo

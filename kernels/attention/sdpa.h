// Causal grouped-query scaled dot-product attention on the packed qkv buffer (Vaswani et al., arXiv 1706.03762; GQA,
// Ainslie et al., arXiv 2305.13245; the log-sum-exp form of backward, Dao et al., arXiv 2205.14135):
//
//   s[i][j] = q_i . k_j / sqrt(head_dim) for start(i) <= j <= i,   p = softmax(s),   out_i = sum_j p[i][j] v_j
//
// Query head h reads key/value head h / (num_heads / num_kv_heads). start(i) is the first token of the sequence, or of
// the document of token i where documents are given, which is then the only one that it attends to. Compute dtype is
// float32 (CPU) or bfloat16 (both); head_dim 32, 64 or 128 on GPUs.
//
// Backward: with D_i = d_out_i . out_i,  p = exp(s - lse),  ds = p * (d_out_i . v_j - D_i),
//   d_q_i = sum_j ds k_j / sqrt(head_dim),  d_k_j = sum_i ds q_i / sqrt(head_dim),  d_v_j = sum_i p d_out_i,
// the latter two summed over the query heads that share the key/value head.
//
// Queued on `stream`. Forward is deterministic; backward is on the CPU, and on GPUs when the stream is deterministic,
// at some cost in time.
#pragma once

#include <string>

#include "core/stream.h"
#include "kernels/attention/documents.h"

namespace octavo {

struct SdpaShape {
  int64_t batch = 0;
  int64_t seq_len = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t qkv_width() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
  int64_t out_width() const { return num_heads * head_dim; }
  bool operator==(const SdpaShape&) const = default;
};

struct SdpaForward {
  SdpaShape shape;
  Tensor out;           // = [batch * seq_len, num_heads * head_dim]
  Tensor lse;           // = [batch, num_heads, seq_len] float32: log of the sum of exp(s), natural logarithm
  Tensor qkv;           // [batch * seq_len, qkv_width], rotated
  Documents documents;  // optional
};
void sdpa_forward(const SdpaForward& args, Stream& stream);

struct SdpaBackward {
  SdpaShape shape;
  Tensor d_qkv;  // = [batch * seq_len, qkv_width]; may not alias qkv
  Tensor d_out;  // [batch * seq_len, num_heads * head_dim]
  Tensor out;    // of the forward
  Tensor lse;    // of the forward
  Tensor qkv;    // of the forward
  Documents documents;
};
void sdpa_backward(const SdpaBackward& args, Stream& stream);

// Scratch that the larger of forward and backward needs, `within_documents` or not: with them, on GPUs, also for copies
// of the tensors (kernels/attention/padded_documents.h). What runs is planned and built here. FlashAttention's
// (kernels/attention/flash_attention.h) is known. On a planned stream, where cuDNN cannot be asked, what was measured:
// backward sums d_q in float32, [batch, num_heads, seq_len, head_dim], beside one number a row; where queries share kv
// heads, it has d_k and d_v of every query head in bfloat16 (514 MiB at 2 x 8192 tokens, 32 heads of 128, 8 kv heads).
// The deterministic one is estimated from above, with a sum for every 256 keys of heads of 128, for every 128 of
// smaller ones (8.4 GB were measured there).
int64_t sdpa_workspace_bytes(const SdpaShape& shape, DType dtype, Stream& stream, bool within_documents = false);

// That on a planned stream, of queries that see `keys` keys: more than they are where others precede them
// (kernels/attention/context_sdpa.h).
int64_t sdpa_planned_workspace_bytes(const SdpaShape& shape, int64_t keys, bool deterministic);

// Of heads of these sizes, on GPUs.
inline constexpr bool sdpa_has_kernels_for(int64_t head_dim) {
  return head_dim == 32 || head_dim == 64 || head_dim == 128;
}
// Throws InputError, naming the sizes there are, when the device has no kernel for this head size and dtype.
void sdpa_check_supported(int64_t head_dim, DType dtype, Device device);

// The version of cuDNN that this process has loaded, "9.14.0"; empty in a build without CUDA.
std::string cudnn_version();

}  // namespace octavo

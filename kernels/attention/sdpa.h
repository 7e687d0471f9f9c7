// Causal grouped-query scaled dot-product attention on the packed qkv buffer (Vaswani et al., arXiv 1706.03762; GQA,
// Ainslie et al., arXiv 2305.13245; the log-sum-exp form of backward, Dao et al., arXiv 2205.14135):
//
//   s[t][j] = q_t . k_j / sqrt(head_dim) for start(t) <= j <= p(t),   p = softmax(s),   out_t = sum_j p[t][j] v_j
//
// Query head h reads key/value head h / (num_heads / num_kv_heads). j is a position in the sequence and p(t) the
// position of token t. start(t) is the first position of the document of token t if documents are given, otherwise 0.
//
// A rank has either whole or shared sequences. Of a shared sequence (context parallelism, core/sequence_chunks.h) it
// has two chunks of the queries, and all keys and values. With whole sequences p(t) is t, and keys and values are
// columns of qkv.
//
// Compute dtype is float32 (CPU only) or bfloat16. Each chunk of a shared sequence is one attention over the keys up to
// the end of the chunk.
// Requires: on GPUs, head_dim is one of kSdpaHeadSizes, and with documents it is 64 or 128
// (kernels/flash_attention/flash_documents.h). Without documents, chunks of a shared sequence have a multiple of
// kContextChunkUnit tokens.
//
// Backward: with D_t = d_out_t . out_t,  p = exp(s - lse),  ds = p * (d_out_t . v_j - D_t),
//   d_q_t = sum_j ds k_j / sqrt(head_dim),  d_k_j = sum_t ds q_t / sqrt(head_dim),  d_v_j = sum_t p d_out_t,
// where d_k and d_v are summed over the query heads that share the key/value head.
//
// Queued on `stream`. Forward is deterministic. Backward is deterministic on the CPU, and on GPUs if the stream is
// deterministic, which is slower.
#pragma once

#include <algorithm>
#include <array>
#include <string>

#include "core/stream.h"
#include "kernels/attention_shapes/sdpa_args.h"

namespace octavo {

// Compute `out` and `lse`, or the gradients. sdpa_args.h describes each tensor.
void sdpa_forward(const SdpaForward& args, Stream& stream);
void sdpa_backward(const SdpaBackward& args, Stream& stream);

// Returns the size of the scratch that forward or backward needs, whichever is larger. The size is equal on every rank.
// `within_documents` says whether the calls have documents. Builds cuDNN's plans. On a dry-run stream cuDNN's scratch
// is estimated (sdpa_planned_workspace_bytes), and FlashAttention's scratch (kernels/flash_attention/flash_attention.h)
// is exact.
int64_t sdpa_workspace_bytes(const SdpaShape& shape, DType dtype, Stream& stream, bool within_documents = false);

// Returns the estimate of cuDNN's scratch on a dry-run stream, where cuDNN cannot be asked. Queries attend to `keys`
// keys, which may be more than there are queries. Backward sums d_q in float32, [batch, num_heads, seq_len, head_dim],
// and stores one more number per query. If query heads share kv heads, it also stores d_k and d_v of every query head
// in bfloat16 (514 MiB in all for 2 x 8192 tokens, 32 heads of 128, 8 kv heads). For deterministic backward the
// estimate is an upper bound: one sum of d_q for every 256 keys with heads of 128, and for every 128 keys with heads of
// 32 and 64 (measured: 8.4 GB). Heads of 80, 96 and 256 were not measured: heads of 80 and 96 count as 128 elements,
// with a sum for every 128 keys, and heads of 256 have a sum for every 64 keys.
int64_t sdpa_planned_workspace_bytes(const SdpaShape& shape, int64_t keys, bool deterministic);

// Returns the bytes of scratch, on GPUs without documents, for the gradients of the keys and values that the first
// chunk of each shared sequence attends to, at most half of the sequence. 0 for whole sequences.
int64_t early_d_kv_bytes(const SdpaShape& shape, DType dtype);

// On GPUs the length of the chunks of shared sequences is a multiple of this number of tokens.
inline constexpr int64_t kContextChunkUnit = 128;

// The head sizes that GPUs have kernels for. Those that FlashAttention has no kernels for are computed by cuDNN.
inline constexpr std::array<int64_t, 6> kSdpaHeadSizes{32, 64, 80, 96, 128, 256};
// Returns whether GPUs have kernels for this head size.
inline constexpr bool sdpa_has_kernels_for(int64_t head_dim) {
  return std::ranges::find(kSdpaHeadSizes, head_dim) != kSdpaHeadSizes.end();
}
// Returns the error message for a pass that cuDNN has no plan for. `what` names the pass, such as "attention forward",
// and `reason` is cuDNN's message. `other_order` says whether cuDNN has a plan that is not deterministic.
std::string sdpa_error_without_plan(int64_t head_dim, const std::string& what, const std::string& reason,
                                    bool other_order);
// Throws InputError, which lists the supported sizes, if the device has no kernel for this head size and dtype.
void sdpa_check_supported(int64_t head_dim, DType dtype, Device device, bool within_documents = false);

// Returns the version of cuDNN that this process has loaded, such as "9.14.0". Empty in a build without CUDA.
std::string cudnn_version();

}  // namespace octavo

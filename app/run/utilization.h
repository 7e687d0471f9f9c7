// FLOPs of training and how well they use the GPU. Only FLOPs of the model count, two per multiply-add in forward and
// four in backward. Recomputation takes time but counts no FLOPs.
//
// A token attends to A tokens on average: (T + 1) / 2 for sequences of T tokens, less with a document mask. N is the
// number of parameters without the input embedding, L the layers, H the heads and Q the head size.
//
//   mfu          (6 N + 12 L H Q T) / 989e12, the formula of PaLM (arXiv 2204.02311, appendix B). It counts attention
//                over the whole sequence, and FP8 relative to the bfloat16 peak.
//   mfu_causal   (6 N + 12 L H Q A) / 989e12. It counts attention as it is masked.
//   utilization  each FLOP of mfu_causal relative to the peak of the format that computes it
//
// All three are multiplied by the tokens per second and GPU. The peaks are the dense ones of H100 SXM and H200.
#pragma once

#include <cstdint>

#include "model/architecture/config.h"
#include "model/architecture/precision.h"

namespace octavo {

constexpr double kPeakBFloat16 = 989e12;  // FLOP/s
constexpr double kPeakFp8 = 1979e12;      // FLOP/s

// FLOPs of training per token.
struct ModelFlops {
  double palm = 0;    // attention counted over the whole sequence
  double causal = 0;  // attention counted as it is masked
  double fp8 = 0;     // part of `causal` that FP8 matmuls compute
};

// Returns the mean number of tokens that a token attends to without a document mask.
constexpr double causal_attended_tokens(int64_t seq_len) { return (static_cast<double>(seq_len) + 1) / 2; }

// Returns the expected number of tokens that a token attends to with a document mask. Documents end after each token
// with the same probability, so their lengths are distributed exponentially. The end of a sequence cuts its last
// document. `document_length` is the mean length before this cut, rounded up to whole tokens.
double document_attended_tokens(int64_t seq_len, int64_t document_length);

ModelFlops model_flops(const ModelConfig& model, const PrecisionConfig& precision, int64_t seq_len,
                       double attended_tokens);

// Shares of the peak, 1 for the whole peak.
struct Utilization {
  double mfu = 0;
  double mfu_causal = 0;
  double utilization = 0;
};

// `wps` is the tokens per second and GPU.
Utilization utilization_of(const ModelFlops& flops, double wps);

// The sentence that explains a value above 100%.
inline constexpr const char* kAbove100 =
    "mfu can exceed 100%: it counts attention without its mask and FP8 against the bfloat16 peak; utilization cannot";

}  // namespace octavo

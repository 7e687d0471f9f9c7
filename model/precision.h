// The precision section of the config: what the step computes in.
//
// Linears (qkv, o, gate_up, down) multiply in the compute dtype or in FP8; everything else stays out of FP8. The FP8
// recipes (kernels/fp8.h has the arithmetic):
//   fp8_tensorwise  one scale a tensor, from its own amax (torchao's float8 tensorwise)
//   fp8_delayed     one scale a tensor, from the largest amax of the last steps (Transformer Engine's DelayedScaling)
//   fp8_rowwise     one scale a row of each operand
//   fp8_blockwise   1x128 for activations and gradients, 128x128 for weights (DeepSeek-V3)
#pragma once

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/fp8.h"

namespace octavo {

enum class LinearPrecision : uint8_t { kBFloat16, kFp8Tensorwise, kFp8Delayed, kFp8Rowwise, kFp8Blockwise };

// Which products use the tensor cores' fast accumulation; blockwise products never do.
enum class FastAccumulation : uint8_t { kForward, kAll, kNone };

struct PrecisionConfig {
  DType compute = DType::kBFloat16;  // activations and the weights that products read: bfloat16, or float32 on the CPU
  LinearPrecision linear = LinearPrecision::kBFloat16;  // bfloat16: linears multiply in `compute`
  int64_t bf16_first_layers = 0;                        // blocks at the start whose linears stay out of FP8
  int64_t bf16_last_layers = 0;                         // blocks at the end likewise
  DType gradient_format = DType::kFloat8E5M2;           // of output gradients; activations and weights are e4m3
  FastAccumulation fast_accumulation = FastAccumulation::kForward;
  int64_t amax_history = 16;       // fp8_delayed: steps whose largest amax makes the scale
  int64_t amax_margin = 0;         // fp8_delayed: the scale is divided by 2^margin
  bool fp8_all_gather = true;      // sharded weights travel in FP8
  DType reduce = DType::kFloat32;  // gradient reduction

  // The recipe of one block's linears.
  LinearPrecision of_layer(int64_t layer, int64_t num_layers) const {
    const bool kept = layer < bf16_first_layers || layer >= num_layers - bf16_last_layers;
    return kept ? LinearPrecision::kBFloat16 : linear;
  }
};

inline bool is_fp8(LinearPrecision precision) { return precision != LinearPrecision::kBFloat16; }
// Whether scales come from one amax a tensor.
inline bool is_per_tensor(LinearPrecision precision) {
  return precision == LinearPrecision::kFp8Tensorwise || precision == LinearPrecision::kFp8Delayed;
}

}  // namespace octavo

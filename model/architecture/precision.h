// The precision section of the config: the number formats of a step.
//
// Linears (qkv, o, gate_up, down) multiply in the compute dtype or in FP8. lm_head (model/head.h) has its own key.
// All other ops compute without FP8. The FP8 recipes of the linears (kernels/fp8/fp8.h has the arithmetic):
//   fp8_tensorwise  one scale per tensor, from the amax of the tensor (torchao's float8 tensorwise)
//   fp8_delayed     one scale per tensor, from its largest amax in the last steps (Transformer Engine's DelayedScaling)
//   fp8_rowwise     one scale per row of each operand
//   fp8_blockwise   one scale per 1x128 block of activations and gradients and 128x128 block of weights (DeepSeek-V3)
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "kernels/fp8/fp8.h"

namespace octavo {

enum class LinearPrecision : uint8_t { kBFloat16, kFp8Tensorwise, kFp8Delayed, kFp8Rowwise, kFp8Blockwise };

// The properties of a recipe that casts, matmuls and collectives depend on. A new recipe that combines existing
// scalings needs only a row here. What follows from the scalings is in functions below.
struct RecipeTraits {
  LinearPrecision recipe;
  const char* name;     // Name in configs.
  bool fp8;             // Whether linears multiply in FP8. Otherwise they use the compute dtype.
  Scaling activations;  // Scaling of inputs and output gradients.
  Scaling weights;      // Scaling of weights.
  bool uses_history;    // Whether amaxes come from earlier steps, so that they are known before the tensor is computed.
  int64_t alignment;    // Every contracted dimension of a matmul is a multiple of this number.
};

// clang-format off
inline constexpr RecipeTraits kRecipes[] = {
    // recipe                         name              fp8    activations            weights                  history alignment
    {LinearPrecision::kBFloat16,      "bfloat16",       false, Scaling::kTensor,      Scaling::kTensor,        false,  1},
    {LinearPrecision::kFp8Tensorwise, "fp8_tensorwise", true,  Scaling::kTensor,      Scaling::kTensor,        false,  16},
    {LinearPrecision::kFp8Delayed,    "fp8_delayed",    true,  Scaling::kTensor,      Scaling::kTensor,        true,   16},
    {LinearPrecision::kFp8Rowwise,    "fp8_rowwise",    true,  Scaling::kRow,         Scaling::kRow,           false,  16},
    {LinearPrecision::kFp8Blockwise,  "fp8_blockwise",  true,  Scaling::kBlock1x128,  Scaling::kBlock128x128,  false,  128},
};
// clang-format on

constexpr const RecipeTraits& traits(LinearPrecision recipe) { return kRecipes[static_cast<size_t>(recipe)]; }

constexpr bool is_fp8(LinearPrecision recipe) { return traits(recipe).fp8; }
// Returns whether each tensor has one scale, made of an amax. A rank can then cast its shard of a weight.
constexpr bool needs_amax(LinearPrecision recipe) {
  return is_fp8(recipe) && traits(traits(recipe).weights).takes_amax;
}
// Returns whether a scale depends only on values that one thread block of a kernel has.
constexpr bool scales_locally(LinearPrecision recipe) {
  const ScalingTraits& scaling = traits(traits(recipe).activations);
  return is_fp8(recipe) && scaling.casts_results && !scaling.takes_amax;
}
// Returns whether activations are cast in one pass, if their amaxes are known.
constexpr bool casts_in_one_pass(LinearPrecision recipe) { return !traits(traits(recipe).activations).measures_apart; }
// Returns whether matmuls can use the tensor cores' fast accumulation.
constexpr bool can_accumulate_fast(LinearPrecision recipe) {
  return is_fp8(recipe) && !traits(traits(recipe).activations).blockwise;
}
// Returns the name under which machine files list the rate of this recipe's matmuls. Recipes of equal rate share it.
constexpr const char* matmul_name(LinearPrecision recipe) {
  return is_fp8(recipe) ? traits(traits(recipe).activations).matmul : "bfloat16";
}

// The matmuls that use the tensor cores' fast accumulation. Blockwise matmuls never use it. Neither does the gradient
// of lm_head's input, which sums over the vocabulary: with 128,256 entries the loss became 6% larger.
enum class FastAccumulation : uint8_t { kForward, kAll, kNone };
constexpr bool accumulates_fast(LinearPrecision recipe, FastAccumulation fast, bool forward) {
  return can_accumulate_fast(recipe) &&
         (fast == FastAccumulation::kAll || (fast == FastAccumulation::kForward && forward));
}

// The matmuls of lm_head that are in FP8. They have one scale per tensor, like fp8_tensorwise.
enum class LmHeadPrecision : uint8_t { kBFloat16, kFp8Backward, kFp8 };

struct LmHeadTraits {
  LmHeadPrecision precision;
  const char* name;  // Name in configs.
  bool logits;       // Whether the matmul that computes the logits is in FP8.
  bool gradients;    // Whether the matmuls that compute the gradients of weight and input are in FP8.
};

inline constexpr LmHeadTraits kLmHeads[] = {
    {LmHeadPrecision::kBFloat16, "bfloat16", false, false},
    {LmHeadPrecision::kFp8Backward, "fp8_backward", false, true},
    {LmHeadPrecision::kFp8, "fp8", true, true},
};
inline constexpr LinearPrecision kLmHeadRecipe = LinearPrecision::kFp8Tensorwise;

constexpr const LmHeadTraits& traits(LmHeadPrecision precision) { return kLmHeads[static_cast<size_t>(precision)]; }

struct PrecisionConfig {
  DType compute = DType::kBFloat16;
  LinearPrecision linear = LinearPrecision::kBFloat16;
  LmHeadPrecision lm_head = LmHeadPrecision::kBFloat16;
  int64_t bf16_first_layers = 0;
  int64_t bf16_last_layers = 0;
  DType gradient_format = DType::kFloat8E5M2;
  FastAccumulation fast_accumulation = FastAccumulation::kForward;
  int64_t amax_history = 16;
  int64_t amax_margin = 0;
  bool fp8_all_gather = true;
  DType reduce = DType::kFloat32;

  // Returns the dtype in which ranks exchange gradients. Matmuls of float32 operands cannot write bfloat16 gradients.
  DType exchanged_gradients() const { return compute == DType::kFloat32 ? DType::kFloat32 : reduce; }
};

constexpr bool is_fp8(LmHeadPrecision precision) { return precision != LmHeadPrecision::kBFloat16; }
// Returns whether any matmul is in FP8.
constexpr bool uses_fp8(const PrecisionConfig& precision) {
  return is_fp8(precision.linear) || is_fp8(precision.lm_head);
}
// Returns `precision` with all matmuls in the compute dtype.
inline PrecisionConfig without_fp8(PrecisionConfig precision) {
  precision.linear = LinearPrecision::kBFloat16;
  precision.lm_head = LmHeadPrecision::kBFloat16;
  return precision;
}

// Returns the name of the FP8 recipe of the linears. Without FP8, returns the name of the compute dtype.
inline const char* precision_name(const PrecisionConfig& precision) {
  return is_fp8(precision.linear) ? traits(precision.linear).name : dtype_name(precision.compute);
}

}  // namespace octavo

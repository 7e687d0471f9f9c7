// The precision section of the config: what the step computes in.
//
// Linears (qkv, o, gate_up, down) multiply in the compute dtype or in FP8, and so does lm_head (model/lm_head.h), by a
// key of its own; everything else stays out of FP8. The FP8 recipes of the linears (kernels/fp8/fp8.h has the
// arithmetic):
//   fp8_tensorwise  one scale a tensor, from its own amax (torchao's float8 tensorwise)
//   fp8_delayed     one scale a tensor, from the largest amax of the last steps (Transformer Engine's DelayedScaling)
//   fp8_rowwise     one scale a row of each operand
//   fp8_blockwise   1x128 for activations and gradients, 128x128 for weights (DeepSeek-V3)
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "kernels/fp8/fp8.h"

namespace octavo {

enum class LinearPrecision : uint8_t { kBFloat16, kFp8Tensorwise, kFp8Delayed, kFp8Rowwise, kFp8Blockwise };

// What a recipe asks of casts, products and collectives. One that differs from the others in these alone is a row here,
// and nothing else.
struct RecipeTraits {
  LinearPrecision recipe;
  const char* name;     // in configs
  const char* product;  // of the recipe whose products run at the same rate, in machine files
  bool fp8;             // else the linears multiply in the compute dtype, and what follows has no meaning
  Scaling activations;  // what an input, or an output gradient, shares one scale over
  Scaling weights;      // what a weight does
  bool needs_amax;  // a scale is made of one amax a tensor (model/linear/amax_table.h); so a weight's shard can be cast
  bool uses_history;       // of earlier steps, so that it is known before the tensor is
  bool scales_locally;     // a scale is made of values that one kernel has at once
  bool casts_in_one_pass;  // over the values, once the amax is known
  bool fast_accumulation;  // there are products with it
  int64_t alignment;       // every dimension that a product contracts is a multiple of this
};

// clang-format off
inline constexpr RecipeTraits kRecipes[] = {
    // recipe                       name              product           fp8    activations            weights                  amax   history local  one_pass fast   alignment
    {LinearPrecision::kBFloat16,      "bfloat16",       "bfloat16",       false, Scaling::kTensor,      Scaling::kTensor,        false, false, false, true,    false, 1},
    {LinearPrecision::kFp8Tensorwise, "fp8_tensorwise", "fp8_tensorwise", true,  Scaling::kTensor,      Scaling::kTensor,        true,  false, false, true,    true,  16},
    {LinearPrecision::kFp8Delayed,    "fp8_delayed",    "fp8_tensorwise", true,  Scaling::kTensor,      Scaling::kTensor,        true,  true,  false, true,    true,  16},
    {LinearPrecision::kFp8Rowwise,    "fp8_rowwise",    "fp8_rowwise",    true,  Scaling::kRow,         Scaling::kRow,           false, false, false, false,   true,  16},
    {LinearPrecision::kFp8Blockwise,  "fp8_blockwise",  "fp8_blockwise",  true,  Scaling::kBlock1x128,  Scaling::kBlock128x128,  false, false, true,  true,    false, 128},
};
// clang-format on

constexpr const RecipeTraits& traits(LinearPrecision recipe) { return kRecipes[static_cast<size_t>(recipe)]; }

// Whether products may take some of an operand's tokens by themselves: where the scales of a token are neighbours.
constexpr bool splits_tokens(Scaling activations) { return !traits(activations).blockwise; }

// Which products use the tensor cores' fast accumulation; blockwise products never do.
enum class FastAccumulation : uint8_t { kForward, kAll, kNone };
constexpr bool accumulates_fast(LinearPrecision recipe, FastAccumulation fast, bool forward) {
  return traits(recipe).fast_accumulation &&
         (fast == FastAccumulation::kAll || (fast == FastAccumulation::kForward && forward));
}

// Which products of lm_head are in FP8; they scale as fp8_tensorwise does.
enum class LmHeadPrecision : uint8_t { kBFloat16, kFp8Backward, kFp8 };

struct LmHeadTraits {
  LmHeadPrecision precision;
  const char* name;  // in configs
  bool logits;       // that which makes the logits, and so the loss
  bool gradients;    // those of the weight's gradient and of the input's
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

  // The recipe of one block's linears.
  LinearPrecision of_layer(int64_t layer, int64_t num_layers) const {
    const bool kept = layer < bf16_first_layers || layer >= num_layers - bf16_last_layers;
    return kept ? LinearPrecision::kBFloat16 : linear;
  }
};

constexpr bool is_fp8(LinearPrecision recipe) { return traits(recipe).fp8; }
constexpr bool needs_amax(LinearPrecision recipe) { return traits(recipe).needs_amax; }
constexpr bool is_fp8(LmHeadPrecision precision) { return precision != LmHeadPrecision::kBFloat16; }
// Whether any product is in FP8, and the same without.
constexpr bool uses_fp8(const PrecisionConfig& precision) {
  return is_fp8(precision.linear) || is_fp8(precision.lm_head);
}
inline PrecisionConfig without_fp8(PrecisionConfig precision) {
  precision.linear = LinearPrecision::kBFloat16;
  precision.lm_head = LmHeadPrecision::kBFloat16;
  return precision;
}

// What the linears multiply in: an FP8 recipe, or without one the compute dtype.
inline const char* precision_name(const PrecisionConfig& precision) {
  return is_fp8(precision.linear) ? traits(precision.linear).name : dtype_name(precision.compute);
}

}  // namespace octavo

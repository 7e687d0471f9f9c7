// The norms and linears of a transformer block, with the names of their parameters. The layout of the parameters, the
// FP8 weights, the tables of amaxes and statistics, plans and reports iterate over these lists.
#pragma once

#include <vector>

#include "model/architecture/batch_shape.h"
#include "model/architecture/config.h"
#include "model/architecture/linear_spec.h"

namespace octavo {

inline constexpr const char* kAttentionNorm = "input_layernorm.weight";
inline constexpr const char* kQueryNorm = "self_attn.q_norm.weight";
inline constexpr const char* kKeyNorm = "self_attn.k_norm.weight";
inline constexpr const char* kMlpNorm = "post_attention_layernorm.weight";

// Return the halves of a block. `config` is the config of the whole model, or the local_config of a rank.
HalfSpec attention_spec(const ModelConfig& config, const BatchShape& shape);
HalfSpec mlp_spec(const ModelConfig& config, const BatchShape& shape);

// Returns both halves in the order of forward.
std::vector<HalfSpec> block_halves(const ModelConfig& config, const BatchShape& shape = {});
// Returns the linears of both halves in the order of forward.
std::vector<LinearSpec> block_linears(const ModelConfig& config, const BatchShape& shape = {});

}  // namespace octavo

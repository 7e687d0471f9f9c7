// What a transformer block consists of: the norms and linears of its two halves, with the names of their parameters.
// The layout of the parameters, the FP8 weights, the tables of amaxes and statistics, the plan and the reports are all
// made from these lists.
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

// The halves of the model of `config`, or of what a rank computes of it (its local_config).
HalfSpec attention_spec(const ModelConfig& config, const BatchShape& shape);
HalfSpec mlp_spec(const ModelConfig& config, const BatchShape& shape);

// Both halves in the order of the forward pass.
std::vector<HalfSpec> block_halves(const ModelConfig& config, const BatchShape& shape = {});
// The linears of both halves in that order.
std::vector<LinearSpec> block_linears(const ModelConfig& config, const BatchShape& shape = {});

}  // namespace octavo

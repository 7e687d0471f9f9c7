// The norms and linears of a transformer block, with the names of their parameters. The layout of the parameters, the
// FP8 weights, the tables of amaxes and statistics, plans and reports iterate over these lists.
#pragma once

#include <cstdint>
#include <vector>

#include "model/architecture/config.h"
#include "model/architecture/linear_spec.h"
#include "parallel/context_group.h"

namespace octavo {

inline constexpr const char* kAttentionNorm = "input_layernorm.weight";
inline constexpr const char* kQueryNorm = "self_attn.q_norm.weight";
inline constexpr const char* kKeyNorm = "self_attn.k_norm.weight";
inline constexpr const char* kMlpNorm = "post_attention_layernorm.weight";

// The shape of a micro-batch.
struct BatchShape {
  int64_t micro_batch_size = 0;  // Sequences in one micro-batch.
  int64_t seq_len = 0;           // Tokens of each sequence that this tensor-parallel group has.
  int64_t tensor_ranks = 1;      // Ranks that divide the layers. Between linears each has a share of the tokens.
  bool document_mask = false;    // Whether a token attends only to tokens of its document.
  ContextRank context = {};      // This rank among the ranks that share each sequence.
  int64_t tokens() const { return micro_batch_size * seq_len; }
  int64_t share() const { return tokens() / tensor_ranks; }
  int64_t whole_seq_len() const { return seq_len * context.size; }
};

// Return the halves of a block. `config` is the config of the whole model, or the local_config of a rank.
HalfSpec attention_spec(const ModelConfig& config, const BatchShape& shape);
HalfSpec mlp_spec(const ModelConfig& config, const BatchShape& shape);

// Returns both halves in the order of forward.
std::vector<HalfSpec> block_halves(const ModelConfig& config, const BatchShape& shape = {});
// Returns the linears of both halves in the order of forward.
std::vector<LinearSpec> block_linears(const ModelConfig& config, const BatchShape& shape = {});

}  // namespace octavo

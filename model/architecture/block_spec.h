// The norms and linears of a transformer block, with the names of their parameters. The layout of the parameters, the
// FP8 weights, the tables of amaxes and statistics, plans and reports iterate over these lists.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/sequence_chunks.h"
#include "model/architecture/activation_checkpointing.h"
#include "model/architecture/config.h"
#include "model/architecture/tensor_parallel.h"

namespace octavo {

struct LinearShape {
  int64_t tokens = 0;  // Tokens of all tensor-parallel ranks.
  int64_t in = 0;      // Width of the inputs that this rank has.
  int64_t out = 0;     // Width of the outputs that this rank has.
  Divided divided = Divided::kOutputs;
  // Returns the width that is not divided. Tokens are exchanged between ranks at this width.
  int64_t whole_width() const { return divided == Divided::kOutputs ? in : out; }
};

// Names of the matmuls in profiles, as string literals. The name of the forward identifies the linear everywhere.
struct LinearNames {
  const char* forward = "linear";
  const char* d_x = "linear_d_x";
  const char* d_w = "linear_d_w";
};

// A parameter that is some rows of the weight W of a linear.
struct MatrixSpec {
  const char* name;          // Name without its prefix, such as "model.layers.3.".
  int64_t rows;              // Rows of the whole parameter.
  bool of_kv_heads = false;  // Whether the rows are kv heads, of which several ranks may have copies.
};

struct LinearSpec {
  LinearNames names = {};
  LinearShape shape = {};
  std::vector<MatrixSpec> matrices = {};               // Parameters of which W consists, in the order of its rows.
  Producer input = Producer::kNorm;                    // Op that computes x.
  Producer output_gradient = Producer::kNormBackward;  // Op that computes the gradient of y.
  // Index in LinearScratch::columns, into which the output gradient is cast. Two linears that follow each other in
  // backward have different slots, because LinearBackward::between of the first may cast the output gradient of the
  // second before the weight gradient of the first is computed.
  size_t gradient_slot = 0;
};

struct NormSpec {
  const char* name;  // Name without its prefix, such as "model.layers.3.".
  int64_t width;
};

// The norms and linears of a sublayer of a block, which is attention or the MLP.
struct SublayerSpec {
  std::vector<NormSpec> norms;
  std::vector<LinearSpec> linears;
};

inline constexpr const char* kAttentionNorm = "input_layernorm.weight";
inline constexpr const char* kQueryNorm = "self_attn.q_norm.weight";
inline constexpr const char* kKeyNorm = "self_attn.k_norm.weight";
inline constexpr const char* kMlpNorm = "post_attention_layernorm.weight";

// The shape of a micro-batch.
struct BatchShape {
  int64_t micro_batch_size = 0;  // Sequences in one micro-batch.
  int64_t seq_len = 0;           // Tokens of each sequence that this tensor-parallel group has.
  int64_t tensor_ranks = 1;      // Ranks that divide the layers. Between linears each has local_tokens().
  bool document_mask = false;    // Whether a token attends only to tokens of its document.
  ContextRank context = {};      // This rank among the ranks that share each sequence.
  int64_t tokens() const { return micro_batch_size * seq_len; }
  int64_t local_tokens() const { return tokens() / tensor_ranks; }
  int64_t whole_seq_len() const { return seq_len * context.size; }
};

// Returns both sublayers in the order of forward. `config` is the config of the whole model, or the local_config of a
// rank.
std::vector<SublayerSpec> block_sublayers(const ModelConfig& config, const BatchShape& shape = {});
// Returns the linears of both sublayers in the order of forward.
std::vector<LinearSpec> block_linears(const ModelConfig& config, const BatchShape& shape = {});

}  // namespace octavo

#include "model/architecture/block_spec.h"

namespace octavo {

namespace {

SublayerSpec attention_spec(const ModelConfig& c, const BatchShape& shape) {
  const int64_t kv_width = c.num_kv_heads * c.head_dim;
  std::vector<NormSpec> norms{{kAttentionNorm, c.hidden_size}};
  if (c.qk_norm) norms.insert(norms.end(), {{kQueryNorm, c.head_dim}, {kKeyNorm, c.head_dim}});
  return {.norms = std::move(norms),
          .linears = {{.names = {"qkv", "qkv_d_x", "qkv_d_w"},
                       .shape = {shape.tokens(), c.hidden_size, c.qkv_width(), Divided::kOutputs},
                       .matrices = {{"self_attn.q_proj.weight", c.attention_width()},
                                    {"self_attn.k_proj.weight", kv_width, true},
                                    {"self_attn.v_proj.weight", kv_width, true}},
                       .input = Producer::kNorm,
                       .output_gradient = Producer::kRopeBackward,
                       .gradient_slot = 0},
                      {.names = {"o", "o_d_x", "o_d_w"},
                       .shape = {shape.tokens(), c.attention_width(), c.hidden_size, Divided::kInputs},
                       .matrices = {{"self_attn.o_proj.weight", c.hidden_size}},
                       .input = Producer::kAttention,
                       .output_gradient = Producer::kNormBackward,
                       .gradient_slot = 1}}};
}

SublayerSpec mlp_spec(const ModelConfig& c, const BatchShape& shape) {
  return {.norms = {{kMlpNorm, c.hidden_size}},
          .linears = {
              {.names = {"gate_up", "gate_up_d_x", "gate_up_d_w"},
               .shape = {shape.tokens(), c.hidden_size, 2 * c.intermediate_size, Divided::kOutputs},
               .matrices = {{"mlp.gate_proj.weight", c.intermediate_size}, {"mlp.up_proj.weight", c.intermediate_size}},
               .input = Producer::kNorm,
               .output_gradient = Producer::kSwigluBackward,
               .gradient_slot = 0},
              {.names = {"down", "down_d_x", "down_d_w"},
               .shape = {shape.tokens(), c.intermediate_size, c.hidden_size, Divided::kInputs},
               .matrices = {{"mlp.down_proj.weight", c.hidden_size}},
               .input = Producer::kSwiglu,
               .output_gradient = Producer::kNormBackward,
               .gradient_slot = 1}}};
}

}  // namespace

std::vector<SublayerSpec> block_sublayers(const ModelConfig& config, const BatchShape& shape) {
  return {attention_spec(config, shape), mlp_spec(config, shape)};
}

std::vector<LinearSpec> block_linears(const ModelConfig& config, const BatchShape& shape) {
  std::vector<LinearSpec> linears;
  for (const SublayerSpec& sublayer : block_sublayers(config, shape)) {
    linears.insert(linears.end(), sublayer.linears.begin(), sublayer.linears.end());
  }
  return linears;
}

}  // namespace octavo

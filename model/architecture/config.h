// The shape of a Llama or Qwen3 model, and the presets of published ones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/attention/rope.h"

namespace octavo {

// The largest sizes of a model. They and kMaxParameters keep every product of sizes (elements, bytes, FLOPs) inside 64
// bits, and a layout of all parameters within some megabytes.
inline constexpr int64_t kMaxHidden = 1 << 20;
inline constexpr int64_t kMaxIntermediate = 1 << 24;
inline constexpr int64_t kMaxLayers = 1 << 14;
inline constexpr int64_t kMaxHeads = 1 << 12;
inline constexpr int64_t kMaxHeadDim = 1 << 12;
inline constexpr int64_t kMaxVocab = (int64_t{1} << 31) - 1;
inline constexpr int64_t kMaxPositions = int64_t{1} << 32;
inline constexpr int64_t kMaxParameters = int64_t{1} << 50;

struct ModelConfig {
  int64_t hidden_size = 0;        // width of the residual stream
  int64_t intermediate_size = 0;  // width of the SwiGLU
  int64_t num_layers = 0;
  int64_t num_heads = 0;     // query heads
  int64_t num_kv_heads = 0;  // key/value heads; divides num_heads
  int64_t head_dim = 0;
  int64_t vocab_size = 0;
  double rope_theta = 500000.0;
  std::optional<RopeScaling> rope_scaling;
  double rms_norm_eps = 1e-5;
  bool tie_word_embeddings = false;  // lm_head.weight is model.embed_tokens.weight
  bool qk_norm = false;              // RMSNorm of each query and key head before rope

  int64_t qkv_width() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
  int64_t attention_width() const { return num_heads * head_dim; }

  // All parameters; a tied table counts once.
  int64_t num_parameters() const;
  // Parameters that take part in products: all without the input embedding table (a tied table counts once, as output).
  int64_t num_matmul_parameters() const;
  // Training FLOPs a token as `mfu` counts them: 6 N + 12 L H Q T, N = num_matmul_parameters().
  double flops_per_token(int64_t seq_len) const;

  // The one check of a shape, wherever it was read. Throws InputError naming the field and the numbers when the shape
  // cannot exist, is beyond the limits above, or is none that attention has kernels for; with `where` before the
  // sentence unless it is empty.
  void validate(const std::string& where = "") const;

  bool operator==(const ModelConfig& other) const = default;
};

// Names accepted by model.preset.
std::vector<std::string> model_preset_names();

// The preset of that name; throws InputError naming the known ones.
ModelConfig model_preset(const std::string& name);

}  // namespace octavo

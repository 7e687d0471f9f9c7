// The shape of a Llama or Qwen3 model, and the presets of published ones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/attention/rope.h"

namespace octavo {

// Limits of the sizes of a model. With kMaxParameters they ensure that numbers of elements, bytes and FLOPs fit in 64
// bits, and that a layout of all parameters takes at most a few megabytes.
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
  bool tie_word_embeddings = false;  // whether lm_head.weight is model.embed_tokens.weight
  bool qk_norm = false;              // whether RMSNorm is applied to each query and key head before rope

  int64_t qkv_width() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
  int64_t attention_width() const { return num_heads * head_dim; }

  // Returns the number of parameters. A tied table counts once.
  int64_t num_parameters() const;
  // Returns the number of parameters that matmuls read: all except the input embedding. A tied table counts as lm_head.
  int64_t num_matmul_parameters() const;
  // Returns the training FLOPs per token that `mfu` counts:
  // 6 num_matmul_parameters() + 12 num_layers num_heads head_dim seq_len.
  double flops_per_token(int64_t seq_len) const;

  // Checks the shape. Configs, checkpoints and Hugging Face models all use this check. Throws InputError with the field
  // and the numbers if the shape is impossible, exceeds the limits above, or has no attention kernel. The message
  // starts with `where` unless it is empty.
  void validate(const std::string& where = "") const;

  bool operator==(const ModelConfig& other) const = default;
};

// Returns the names that model.preset accepts.
std::vector<std::string> model_preset_names();

// Returns the preset with the name. Throws InputError with the names of all presets if there is none.
ModelConfig model_preset(const std::string& name);

}  // namespace octavo

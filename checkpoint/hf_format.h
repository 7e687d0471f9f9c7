// The config.json of Hugging Face's Llama and dense Qwen3 models, as transformers 4 and 5 write and read it. They
// differ in rope: version 4 has rope_theta and rope_scaling {rope_type or type, factor, ...}, version 5 has
// rope_parameters {rope_theta, rope_type, factor, ...}. A file may have both if they agree.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "core/dtype.h"
#include "model/architecture/config.h"

namespace octavo {

// Contents of a Hugging Face directory beyond the model's shape, which an export writes again.
struct HfMetadata {
  nlohmann::json bos_token_id;          // A number or null.
  nlohmann::json eos_token_id;          // A number, a list of numbers or null.
  int64_t max_position_embeddings = 0;  // Maximum number of positions. 0 means unknown.
  int64_t seq_len = 0;                  // Sequence length of training. 0 means unknown.
};

inline constexpr const char* kHfConfigName = "config.json";

// Returns the shape that a config.json describes. `path` names it in messages. Throws an InputError for a model that
// Octavo does not compute (another model_type, biases, another activation, a sliding window, rope types other than
// default and llama3, quantization), and for a shape that ModelConfig::validate refuses.
ModelConfig parse_hf_config(const nlohmann::json& json, const std::string& path);
HfMetadata parse_hf_metadata(const nlohmann::json& json);

// Returns a config.json that both versions read. max_position_embeddings is that of the metadata, or else that of the
// rope scaling, or else the training length, but at least the training length.
nlohmann::ordered_json make_hf_config(const ModelConfig& config, const HfMetadata& metadata, DType dtype);

}  // namespace octavo

// The config.json of Hugging Face's Llama models, as transformers 4 and 5 write and read it. They differ in rope:
// version 4 has rope_theta and rope_scaling {rope_type or type, factor, ...}, version 5 rope_parameters {rope_theta,
// rope_type, factor, ...}. A file may have both if they say the same.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "core/dtype.h"
#include "model/config.h"

namespace octavo {

// What a Hugging Face directory says beyond the model's shape, kept so that an export gives it back.
struct HfMetadata {
  nlohmann::json bos_token_id;          // a number or null
  nlohmann::json eos_token_id;          // a number, a list of numbers or null
  int64_t max_position_embeddings = 0;  // 0: not known
  int64_t seq_len = 0;                  // that the model was trained with; 0: not known
};

inline constexpr const char* kHfConfigName = "config.json";

// The shape that a config.json describes; `path` names it in messages. InputError for what is not a Llama as Octavo
// computes it (another model_type, biases, another activation, rope types other than default and llama3, quantization),
// or a shape that ModelConfig::validate refuses.
ModelConfig parse_hf_config(const nlohmann::json& json, const std::string& path);
HfMetadata parse_hf_metadata(const nlohmann::json& json);

// A config.json that both versions read. max_position_embeddings is the metadata's, or else what the rope scaling was
// made for, or else the training length; at least that in any case.
nlohmann::ordered_json make_hf_config(const ModelConfig& config, const HfMetadata& metadata, DType dtype);

}  // namespace octavo

// The config.json of Hugging Face's Llama and dense Qwen3 models, as transformers 4 and 5 write and read it. These
// versions differ in rope: version 4 has rope_theta and rope_scaling {rope_type or type, factor, ...}, version 5 has
// rope_parameters {rope_theta, rope_type, factor, ...}. A file may have both if they agree.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "model/architecture/config.h"

namespace octavo {

// Contents of a Hugging Face directory beyond the model's shape, which an export writes again.
struct HfMetadata {
  nlohmann::json bos_token_id;          // A number or null.
  nlohmann::json eos_token_id;          // A number, a list of numbers or null.
  int64_t max_position_embeddings = 0;  // Maximum number of positions. 0 means unknown.
  int64_t seq_len = 0;                  // Longest sequence length of training. 0 means unknown.
  nlohmann::json config;                // config.json of the model that a run began from. Null if there is none.
  nlohmann::json generation_config;     // generation_config.json of that model. Null if there is none.
};

inline constexpr const char* kHfConfigName = "config.json";
inline constexpr const char* kGenerationConfigName = "generation_config.json";
// Key in a checkpoint's metadata for the two files above, by their names, of the model that the run began from.
// Checkpoints of earlier versions have bos_token_id, eos_token_id and max_position_embeddings instead.
inline constexpr const char* kHfMetaKey = "hugging_face";

// Returns the shape that a config.json describes. `path` names it in messages. Throws an InputError for a model that
// Octavo does not compute (another model_type, biases, another activation, a sliding window, attention to later tokens,
// rope types other than default and llama3, quantization), and for a shape that ModelConfig::validate refuses.
ModelConfig parse_hf_config(const nlohmann::json& json, const std::string& path);

// Returns the keys of a config.json that are ignored but could matter: keys that Octavo does not know, and dropout.
// Keys of rope_parameters and rope_scaling are named like "rope_scaling.beta_fast".
std::vector<std::string> ignored_hf_keys(const nlohmann::json& json);

// Returns the contents of a checkpoint's kHfMetaKey, or of a config.json. The ids in generation_config.json take
// precedence over those in config.json, as in transformers.
HfMetadata parse_hf_metadata(const nlohmann::json& json);

// Returns the metadata that an export of a checkpoint of this step writes: those of the model that the run began from,
// with what training changed. `meta` is the checkpoint's metadata. The bos and eos of the training data replace the
// model's ids if they differ, but a list of eos ids stays if it contains the eos of the data.
HfMetadata hf_metadata_of(const nlohmann::json& meta, int64_t step);

// Returns a config.json that transformers 4 and 5 read: metadata.config with the keys whose meaning has changed, or a
// new one if metadata.config is null. max_position_embeddings is that of the metadata, or else that of the rope
// scaling, but at least metadata.seq_len.
nlohmann::json make_hf_config(const ModelConfig& config, const HfMetadata& metadata, DType dtype);
nlohmann::json make_generation_config(const HfMetadata& metadata);

// Throws an InputError that names the first field of the model that a reader of this config.json would get wrong, such
// as a field that config.json has no key for.
void check_describes(const nlohmann::json& hf_config, const ModelConfig& model, const std::string& model_path);

}  // namespace octavo

#include "checkpoint/hf_format.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/json_input.h"

namespace octavo {
namespace {

using Json = nlohmann::json;

// Absent and null mean the same in a config.json.
bool given(const Json& json, const char* key) { return json.contains(key) && !json.at(key).is_null(); }

int64_t get_integer(const Json& json, const char* key, const std::string& path) {
  CHECK_INPUT(given(json, key), "{}: has no {}", path, key);
  return as_integer(json.at(key), fmt::format("{}: {}", path, key));
}

int64_t get_integer(const Json& json, const char* key, int64_t fallback, const std::string& path) {
  return given(json, key) ? get_integer(json, key, path) : fallback;
}

double get_number(const Json& json, const char* key, const std::string& path) {
  CHECK_INPUT(given(json, key), "{}: has no {}", path, key);
  CHECK_INPUT(json.at(key).is_number(), "{}: {} is {}, expected a number", path, key, json.at(key).dump());
  return json.at(key).get<double>();
}

bool get_flag(const Json& json, const char* key, const std::string& path) {
  if (!given(json, key)) return false;
  CHECK_INPUT(json.at(key).is_boolean(), "{}: {} is {}, expected true or false", path, key, json.at(key).dump());
  return json.at(key).get<bool>();
}

void expect_text(const Json& json, const char* key, const char* expected, const std::string& path) {
  CHECK_INPUT(json.at(key) == expected, "{}: {} is {}, expected \"{}\"", path, key, json.at(key).dump(), expected);
}

void check_supported_architecture(const Json& json, const std::string& path) {
  CHECK_INPUT(json.is_object(), "{}: is not a JSON object", path);
  CHECK_INPUT(given(json, "model_type"), "{}: has no model_type, expected \"llama\"", path);
  expect_text(json, "model_type", "llama", path);
  if (given(json, "hidden_act")) expect_text(json, "hidden_act", "silu", path);
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    CHECK_INPUT(!get_flag(json, key, path), "{}: {} is true, expected false: Octavo's linears have no bias", path, key);
  }
  CHECK_INPUT(!given(json, "quantization_config"), "{}: has a quantization_config, expected weights in a float dtype",
              path);
}

// Version 5 puts everything into rope_parameters; version 4 has rope_theta beside an optional rope_scaling.
void parse_rope(const Json& json, const std::string& path, ModelConfig& config) {
  const char* key = given(json, "rope_parameters") ? "rope_parameters" : "rope_scaling";
  const Json rope = given(json, key) ? json.at(key) : Json::object();
  CHECK_INPUT(rope.is_object(), "{}: {} is {}, expected an object", path, key, rope.dump());
  config.rope_theta = 10000.0;  // the default of transformers
  for (const Json* place : {&json, &rope}) {
    if (given(*place, "rope_theta")) config.rope_theta = get_number(*place, "rope_theta", path);
  }
  const Json type = rope.value("rope_type", rope.value("type", Json("default")));
  const std::string where = fmt::format("{}: {}", path, key);
  CHECK_INPUT(type == "default" || type == "llama3", "{}: the rope type is {}, expected \"default\" or \"llama3\"",
              where, type.dump());
  CHECK_INPUT(!given(rope, "partial_rotary_factor") || rope.at("partial_rotary_factor") == 1,
              "{}: partial_rotary_factor is {}, expected 1", where, rope.value("partial_rotary_factor", Json()).dump());
  if (type == "default") return;
  config.rope_scaling = RopeScaling{get_number(rope, "factor", where), get_number(rope, "low_freq_factor", where),
                                    get_number(rope, "high_freq_factor", where),
                                    get_integer(rope, "original_max_position_embeddings", where)};
}

int64_t max_positions(const ModelConfig& config, const HfMetadata& metadata) {
  int64_t positions = metadata.max_position_embeddings;
  if (positions == 0 && config.rope_scaling) {
    positions = std::llround(config.rope_scaling->factor *
                             static_cast<double>(config.rope_scaling->original_max_position_embeddings));
  }
  positions = std::max(positions, metadata.seq_len);
  return positions > 0 ? positions : 8192;
}

}  // namespace

ModelConfig parse_hf_config(const Json& json, const std::string& path) {
  check_supported_architecture(json, path);
  ModelConfig config;
  config.hidden_size = get_integer(json, "hidden_size", path);
  config.intermediate_size = get_integer(json, "intermediate_size", path);
  config.num_layers = get_integer(json, "num_hidden_layers", path);
  config.num_heads = get_integer(json, "num_attention_heads", path);
  CHECK_INPUT(config.num_heads > 0, "{}: num_attention_heads is {}, expected a positive number", path,
              config.num_heads);
  config.num_kv_heads = get_integer(json, "num_key_value_heads", config.num_heads, path);
  CHECK_INPUT(config.num_kv_heads > 0, "{}: num_key_value_heads is {}, expected a positive number", path,
              config.num_kv_heads);
  config.head_dim = get_integer(json, "head_dim", config.hidden_size / config.num_heads, path);
  config.vocab_size = get_integer(json, "vocab_size", path);
  config.rms_norm_eps = given(json, "rms_norm_eps") ? get_number(json, "rms_norm_eps", path) : 1e-6;
  config.tie_word_embeddings = get_flag(json, "tie_word_embeddings", path);
  parse_rope(json, path, config);
  config.validate(path);
  return config;
}

HfMetadata parse_hf_metadata(const Json& json) {
  HfMetadata metadata;
  if (!json.is_object()) return metadata;
  metadata.bos_token_id = json.value("bos_token_id", Json());
  metadata.eos_token_id = json.value("eos_token_id", Json());
  const Json positions = json.value("max_position_embeddings", Json());
  if (positions.is_number_integer()) metadata.max_position_embeddings = positions.get<int64_t>();
  return metadata;
}

nlohmann::ordered_json make_hf_config(const ModelConfig& config, const HfMetadata& metadata, DType dtype) {
  nlohmann::ordered_json scaling;  // null without scaling
  nlohmann::ordered_json rope = {{"rope_theta", config.rope_theta}, {"rope_type", "default"}};
  if (config.rope_scaling) {
    scaling = {{"rope_type", "llama3"},
               {"factor", config.rope_scaling->factor},
               {"low_freq_factor", config.rope_scaling->low_freq_factor},
               {"high_freq_factor", config.rope_scaling->high_freq_factor},
               {"original_max_position_embeddings", config.rope_scaling->original_max_position_embeddings}};
    rope.update(scaling);
  }
  nlohmann::ordered_json json;
  json["architectures"] = {"LlamaForCausalLM"};
  json["model_type"] = "llama";
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = config.intermediate_size;
  json["num_hidden_layers"] = config.num_layers;
  json["num_attention_heads"] = config.num_heads;
  json["num_key_value_heads"] = config.num_kv_heads;
  json["head_dim"] = config.head_dim;
  json["vocab_size"] = config.vocab_size;
  json["max_position_embeddings"] = max_positions(config, metadata);
  json["rope_theta"] = config.rope_theta;
  json["rope_scaling"] = scaling;
  json["rope_parameters"] = rope;
  json["rms_norm_eps"] = config.rms_norm_eps;
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  json["hidden_act"] = "silu";
  json["attention_bias"] = false;
  json["attention_dropout"] = 0.0;
  json["mlp_bias"] = false;
  json["initializer_range"] = 0.02;
  json["bos_token_id"] = metadata.bos_token_id;
  json["eos_token_id"] = metadata.eos_token_id;
  json["use_cache"] = true;
  json["torch_dtype"] = dtype_name(dtype);
  json["dtype"] = dtype_name(dtype);
  return json;
}

}  // namespace octavo

#include "checkpoint/hf_format.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/files/json_input.h"
#include "model/architecture/model_fields.h"

namespace octavo {
namespace {

using Json = nlohmann::json;

// Returns whether a key has a value. Absent and null mean the same in a config.json.
bool given(const Json& json, const char* key) { return json.contains(key) && !json.at(key).is_null(); }

int64_t get_integer(const Json& json, const char* key, const std::string& path) {
  CHECK_INPUT(given(json, key), "{}: has no {}", path, key);
  return as_integer(json.at(key), fmt::format("{}: {}", path, key));
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

// Reads the members that `json` has under their Hugging Face names. Others keep their values, but a member without a
// default must exist.
template <typename Struct>
void read_hf_fields(const Json& json, const std::string& path, Struct& fields) {
  for_each_field(fields, [&](const auto& field, auto& value) {
    using Value = std::decay_t<decltype(value)>;
    if (field.hf_name == nullptr || (!given(json, field.hf_name) && field.presence != Presence::kRequired)) return;
    if constexpr (std::is_same_v<Value, int64_t>) {
      value = get_integer(json, field.hf_name, path);
    } else if constexpr (std::is_same_v<Value, double>) {
      value = get_number(json, field.hf_name, path);
    } else if constexpr (std::is_same_v<Value, bool>) {
      value = get_flag(json, field.hf_name, path);
    }
  });
}

void expect_text(const Json& json, const char* key, const char* expected, const std::string& path) {
  CHECK_INPUT(json.at(key) == expected, "{}: {} is {}, expected \"{}\"", path, key, json.at(key).dump(), expected);
}

// An architecture of Hugging Face. A model belongs to the one that has qk-norm if it has.
struct Architecture {
  const char* model_type;
  const char* class_name;
  bool qk_norm;
  int64_t head_dim;  // Default head size. 0 means hidden_size / num_attention_heads.
};
constexpr Architecture kArchitectures[] = {{"llama", "LlamaForCausalLM", false, 0},
                                           {"qwen3", "Qwen3ForCausalLM", true, 128}};

const Architecture& architecture_of(const Json& json, const std::string& path) {
  CHECK_INPUT(json.is_object(), "{}: is not a JSON object", path);
  std::string known;
  for (const Architecture& architecture : kArchitectures) {
    if (json.contains("model_type") && json.at("model_type") == architecture.model_type) return architecture;
    known += fmt::format("{}\"{}\"", known.empty() ? "" : " or ", architecture.model_type);
  }
  CHECK_INPUT(given(json, "model_type"), "{}: has no model_type, expected {}", path, known);
  throw InputError(fmt::format("{}: model_type is {}, expected {}", path, json.at("model_type").dump(), known));
}

// Throws for a model with sliding-window attention, because every layer of Octavo attends to all earlier tokens.
void check_no_sliding_window(const Json& json, const std::string& path) {
  CHECK_INPUT(!get_flag(json, "use_sliding_window", path),
              "{}: use_sliding_window is true, expected false: Octavo attends to all tokens", path);
  if (!given(json, "layer_types")) return;
  for (const Json& type : json.at("layer_types")) {
    CHECK_INPUT(type == "full_attention", "{}: layer_types has {}, expected only \"full_attention\"", path,
                type.dump());
  }
}

void check_supported_architecture(const Json& json, const std::string& path) {
  if (given(json, "hidden_act")) expect_text(json, "hidden_act", "silu", path);
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    CHECK_INPUT(!get_flag(json, key, path), "{}: {} is true, expected false: Octavo's linears have no bias", path, key);
  }
  check_no_sliding_window(json, path);
  CHECK_INPUT(!given(json, "quantization_config"), "{}: has a quantization_config, expected weights in a float dtype",
              path);
}

void expect_same(const std::string& path, const std::string& name, const Json& value, const std::string& other_name,
                 const Json& other) {
  CHECK_INPUT(value == other, "{}: {} is {}, but {} is {}, expected the same", path, name, value.dump(), other_name,
              other.dump());
}

void check_partial_rotary_factor(const Json& json, const std::string& where) {
  constexpr const char* kKey = "partial_rotary_factor";
  CHECK_INPUT(!given(json, kKey) || json.at(kKey) == 1, "{}: {} is {}, expected 1", where, kKey, json.at(kKey).dump());
}

// Parses rope_parameters or rope_scaling. Returns nothing for a plain rope.
std::optional<RopeScaling> parse_rope_scaling(const Json& rope, const std::string& path, const std::string& key) {
  const std::string where = fmt::format("{}: {}", path, key);
  CHECK_INPUT(rope.is_object(), "{} is {}, expected an object", where, rope.dump());
  const bool has_older_key = given(rope, "type");
  if (has_older_key && given(rope, "rope_type"))
    expect_same(path, key + ".rope_type", rope.at("rope_type"), key + ".type", rope.at("type"));
  const char* type_key = has_older_key ? "type" : "rope_type";
  const Json type = given(rope, type_key) ? rope.at(type_key) : Json("default");
  CHECK_INPUT(type == "default" || type == "llama3", "{}: the rope type is {}, expected \"default\" or \"llama3\"",
              where, type.dump());
  check_partial_rotary_factor(rope, where);
  if (type == "default") return std::nullopt;
  RopeScaling scaling;
  read_hf_fields(rope, where, scaling);
  return scaling;
}

void expect_same_scaling(const std::string& path, const std::optional<RopeScaling>& scaling, const std::string& key,
                         const std::optional<RopeScaling>& other, const std::string& other_key) {
  const auto type = [](const std::optional<RopeScaling>& of) { return of ? "llama3" : "default"; };
  expect_same(path, key + ".rope_type", type(scaling), other_key + ".rope_type", type(other));
  if (!scaling) return;
  const Json fields = shape_to_json<Json>(*scaling);
  const Json others = shape_to_json<Json>(*other);
  for (const auto& [name, value] : fields.items())
    expect_same(path, fmt::format("{}.{}", key, name), value, fmt::format("{}.{}", other_key, name), others.at(name));
}

// Version 5 has everything in rope_parameters. Version 4 has rope_theta and an optional rope_scaling. Programs read one
// or the other, so a file with both must agree.
void parse_rope(const Json& json, const std::string& path, ModelConfig& config) {
  constexpr const char* kTheta = "rope_theta";
  config.rope_theta = 10000.0;  // Default of transformers if the file has no rope_theta.
  std::string theta_name;       // Name of the key where theta was found.
  const auto read_theta = [&](const Json& place, const std::string& name) {
    if (!given(place, kTheta)) return;
    const double theta = get_number(place, kTheta, path);
    if (!theta_name.empty()) expect_same(path, name, theta, theta_name, config.rope_theta);
    config.rope_theta = theta;
    theta_name = name;
  };
  read_theta(json, kTheta);
  check_partial_rotary_factor(json, path);
  std::string scaling_key;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!given(json, key) || json.at(key).empty()) continue;
    const std::optional<RopeScaling> scaling = parse_rope_scaling(json.at(key), path, key);
    read_theta(json.at(key), fmt::format("{}.{}", key, kTheta));
    if (!scaling_key.empty()) expect_same_scaling(path, scaling, key, config.rope_scaling, scaling_key);
    config.rope_scaling = scaling;
    scaling_key = key;
  }
}

// Writes the members. `positions`, the members of rope, go to the place of the first field without a name of its own.
template <typename Struct>
void write_hf_fields(const Struct& fields, nlohmann::ordered_json& json, const nlohmann::ordered_json& positions = {}) {
  for_each_field(fields, [&](const auto& field, const auto& value) {
    if (field.hf_name == nullptr)
      json.update(positions);
    else
      json[field.hf_name] = shape_to_json<nlohmann::ordered_json>(value);
  });
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
  const Architecture& architecture = architecture_of(json, path);
  check_supported_architecture(json, path);
  ModelConfig config;
  config.qk_norm = architecture.qk_norm;
  config.rms_norm_eps = 1e-6;  // Default of transformers if the file has no rms_norm_eps.
  read_hf_fields(json, path, config);
  CHECK_INPUT(config.num_heads > 0, "{}: num_attention_heads is {}, expected a positive number", path,
              config.num_heads);
  if (!given(json, "num_key_value_heads")) config.num_kv_heads = config.num_heads;
  CHECK_INPUT(config.num_kv_heads > 0, "{}: num_key_value_heads is {}, expected a positive number", path,
              config.num_kv_heads);
  if (!given(json, "head_dim"))
    config.head_dim = architecture.head_dim > 0 ? architecture.head_dim : config.hidden_size / config.num_heads;
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
  nlohmann::ordered_json scaling;  // The value of rope_scaling. Null without scaling.
  nlohmann::ordered_json rope = {{"rope_theta", config.rope_theta}, {"rope_type", "default"}};
  if (config.rope_scaling) {
    scaling["rope_type"] = "llama3";
    write_hf_fields(*config.rope_scaling, scaling);
    rope.update(scaling);
  }
  const nlohmann::ordered_json positions = {{"max_position_embeddings", max_positions(config, metadata)},
                                            {"rope_theta", config.rope_theta},
                                            {"rope_scaling", scaling},
                                            {"rope_parameters", rope}};
  const auto* architecture = std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                                          [&](const Architecture& a) { return a.qk_norm == config.qk_norm; });
  nlohmann::ordered_json json;
  json["architectures"] = {architecture->class_name};
  json["model_type"] = architecture->model_type;
  write_hf_fields(config, json, positions);
  json["hidden_act"] = "silu";
  json["attention_bias"] = false;
  json["attention_dropout"] = 0.0;
  if (config.qk_norm) {
    json["use_sliding_window"] = false;
    json["sliding_window"] = nullptr;
  } else {
    json["mlp_bias"] = false;
  }
  json["initializer_range"] = 0.02;
  json["bos_token_id"] = metadata.bos_token_id;
  json["eos_token_id"] = metadata.eos_token_id;
  json["use_cache"] = true;
  json["torch_dtype"] = dtype_name(dtype);
  json["dtype"] = dtype_name(dtype);
  return json;
}

}  // namespace octavo

#include "checkpoint/hf_format.h"

#include <algorithm>
#include <cmath>
#include <ranges>

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

// The effect of a key of config.json that has a value.
enum class KeyUse : uint8_t {
  kUsed,      // This file reads it.
  kHarmless,  // It does not change what the model computes.
  kOneOf,     // It is refused unless it has one of the listed values.
  kNamed,     // It is ignored, and ignored_hf_keys() names it unless it has one of the listed values.
};

struct KeyRule {
  KeyUse use;
  std::string_view names;     // Names of keys, separated by spaces.
  const char* values = "[]";  // List of values for kOneOf and kNamed, as JSON.
  const char* reason = "";    // Reason why other values are refused.
};

// The keys of config.json besides the fields of the shape (model_fields.h). All other keys are like kNamed.
constexpr KeyRule kKeyRules[] = {
    {KeyUse::kUsed,
     "model_type rope_theta rope_scaling rope_parameters original_max_position_embeddings max_position_embeddings "
     "use_sliding_window max_window_layers layer_types bos_token_id eos_token_id pad_token_id"},
    // Keys of names, dtypes, outputs and execution in transformers, of initialization, of heads for other tasks, and of
    // other tokens.
    {KeyUse::kHarmless,
     "_name_or_path name_or_path _commit_hash architectures transformers_version torch_dtype dtype use_bfloat16 "
     "initializer_range pretraining_tp use_cache return_dict return_dict_in_generate output_attentions "
     "output_hidden_states output_scores torchscript tf_legacy_loss gradient_checkpointing chunk_size_feed_forward "
     "attn_implementation _attn_implementation _attn_implementation_autoset _flash_attn_2_enabled is_decoder "
     "tie_encoder_decoder cross_attention_hidden_size tie_last_hidden_states id2label label2id num_labels problem_type "
     "finetuning_task task_specific_params tokenizer_class prefix unk_token_id sep_token_id cls_token_id mask_token_id "
     "decoder_start_token_id model_max_length max_sequence_length is_llama_config transformers.js_config unsloth_fixed "
     "unsloth_version"},
    // Settings of generation in files of transformers 4.
    {KeyUse::kHarmless,
     "max_length min_length max_new_tokens do_sample early_stopping num_beams num_beam_groups diversity_penalty "
     "temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size "
     "encoder_no_repeat_ngram_size bad_words_ids num_return_sequences forced_bos_token_id forced_eos_token_id "
     "remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens"},
    {KeyUse::kOneOf, "hidden_act", R"(["silu", "swish"])", "Octavo's MLP is a SwiGLU"},
    {KeyUse::kOneOf, "attention_bias mlp_bias", "[false]", "Octavo's linears have no bias"},
    {KeyUse::kOneOf, "is_causal", "[true]", "Octavo's tokens attend only to earlier ones"},
    {KeyUse::kOneOf, "is_encoder_decoder add_cross_attention", "[false]", "Octavo trains decoders"},
    {KeyUse::kOneOf, "pruned_heads per_layer_config", "[{}, []]", "Octavo's blocks are all alike"},
    {KeyUse::kOneOf, "quantization_config compression_config", "[]", "Octavo reads weights in a float dtype"},
    {KeyUse::kOneOf, "partial_rotary_factor", "[1]", "Octavo's rope rotates whole heads"},
    {KeyUse::kNamed, "attention_dropout hidden_dropout embd_pdrop resid_pdrop", "[0]"},
    {KeyUse::kNamed, "rope_interleaved", "[false]"},
};

// Keys of rope_parameters and rope_scaling.
constexpr std::string_view kRopeKeys = "rope_theta rope_type type partial_rotary_factor";
constexpr std::string_view kLlama3RopeKeys = "factor low_freq_factor high_freq_factor original_max_position_embeddings";
// Keys of linear and yarn, which have no effect if the factor is 1.
constexpr std::string_view kFactorRopeKeys =
    "factor attention_factor beta_fast beta_slow mscale mscale_all_dim truncate original_max_position_embeddings";

// Returns whether a list of names that are separated by spaces contains the name.
bool has_name(std::string_view names, std::string_view name) {
  return std::ranges::any_of(names | std::views::split(' '),
                             [&](const auto& one) { return std::ranges::equal(one, name); });
}

bool has_value(const Json& values, const Json& value) { return std::ranges::find(values, value) != values.end(); }

// Refuses a key with a value that changes what the model computes in a way that Octavo does not.
void check_key(const std::string& key, const Json& value, const std::string& where) {
  for (const KeyRule& rule : kKeyRules) {
    if (rule.use != KeyUse::kOneOf || !has_name(rule.names, key)) continue;
    const Json values = Json::parse(rule.values);
    std::string expected;
    for (const Json& one : values) expected += (expected.empty() ? "" : " or ") + one.dump();
    CHECK_INPUT(has_value(values, value), "{}: {} is {}, expected {}: {}", where, key, value.dump(),
                expected.empty() ? "no such key" : expected, rule.reason);
  }
}

// Returns whether a key of config.json that is not a field of the shape is ignored but could matter.
bool is_ignored(const std::string& key, const Json& value) {
  for (const KeyRule& rule : kKeyRules) {
    if (has_name(rule.names, key)) return rule.use == KeyUse::kNamed && !has_value(Json::parse(rule.values), value);
  }
  return true;
}

// An architecture of Hugging Face. A model has the architecture with the same qk_norm.
struct Architecture {
  const char* model_type;
  const char* class_name;
  bool qk_norm;
  int64_t head_dim;   // Default head size. 0 means hidden_size / num_attention_heads.
  int64_t positions;  // Default max_position_embeddings.
};
constexpr Architecture kArchitectures[] = {{"llama", "LlamaForCausalLM", false, 0, 2048},
                                           {"qwen3", "Qwen3ForCausalLM", true, 128, 32768}};

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
// Missing keys have the defaults of transformers. use_sliding_window has no effect if every layer is full.
void check_no_sliding_window(const Json& json, const std::string& path) {
  constexpr int64_t kDefaultMaxWindowLayers = 28;
  if (given(json, "layer_types")) {
    CHECK_INPUT(json.at("layer_types").is_array(), "{}: layer_types is {}, expected a list", path,
                json.at("layer_types").dump());
    for (const Json& type : json.at("layer_types")) {
      CHECK_INPUT(type == "full_attention", "{}: layer_types has {}, expected only \"full_attention\"", path,
                  type.dump());
    }
    return;
  }
  const bool has_window = given(json, "sliding_window") || !json.contains("sliding_window");
  if (!get_flag(json, "use_sliding_window", path) || !has_window) return;
  const int64_t full_layers =
      given(json, "max_window_layers") ? get_integer(json, "max_window_layers", path) : kDefaultMaxWindowLayers;
  const int64_t layers = get_integer(json, "num_hidden_layers", path);
  CHECK_INPUT(full_layers >= layers,
              "{}: use_sliding_window is true and max_window_layers is {}, expected false, or at least "
              "num_hidden_layers {}: Octavo attends to all tokens",
              path, full_layers, layers);
}

void expect_same(const std::string& path, const std::string& name, const Json& value, const std::string& other_name,
                 const Json& other) {
  CHECK_INPUT(value == other, "{}: {} is {}, but {} is {}, expected the same", path, name, value.dump(), other_name,
              other.dump());
}

// Returns whether a rope of the type linear or yarn has the factor 1, so that it equals a plain one. Some versions of
// transformers replace the factor of yarn with the quotient of the lengths if the original length is given.
bool is_plain_rope(const Json& type, const Json& rope) {
  const auto is_one = [&](const char* key) { return given(rope, key) && rope.at(key) == 1; };
  const bool is_known = type == "linear" || (type == "yarn" && !given(rope, "original_max_position_embeddings"));
  return is_known && is_one("factor") && (!given(rope, "attention_factor") || is_one("attention_factor"));
}

Json rope_type_of(const Json& rope) {
  for (const char* key : {"rope_type", "type"}) {
    if (given(rope, key)) return rope.at(key);
  }
  return "default";
}

// Returns the sequence length before the scaling of llama3. As in transformers, this is
// original_max_position_embeddings of the scaling or of the file, or else max_position_embeddings. Returns null if
// there is none.
Json original_positions(const Json& json, const Json& rope, const std::string& path, const std::string& key) {
  constexpr const char* kOriginal = "original_max_position_embeddings";
  if (given(rope, kOriginal) && given(json, kOriginal))
    expect_same(path, fmt::format("{}.{}", key, kOriginal), rope.at(kOriginal), kOriginal, json.at(kOriginal));
  if (given(rope, kOriginal)) return rope.at(kOriginal);
  if (given(json, kOriginal)) return json.at(kOriginal);
  return json.value("max_position_embeddings", Json());
}

// Parses rope_parameters or rope_scaling of a config.json. Returns nothing for a plain rope.
std::optional<RopeScaling> parse_rope_scaling(const Json& json, const std::string& path, const std::string& key) {
  Json rope = json.at(key);
  const std::string where = fmt::format("{}: {}", path, key);
  CHECK_INPUT(rope.is_object(), "{} is {}, expected an object", where, rope.dump());
  for (const auto& [name, value] : rope.items()) {
    CHECK_INPUT(!value.is_object(), "{}.{} is an object, expected a number or a name: Octavo's layers have one rope",
                where, name);
    if (name == "partial_rotary_factor" && !value.is_null()) check_key(name, value, where);
  }
  const Json type = rope_type_of(rope);
  if (given(rope, "type")) expect_same(path, key + ".rope_type", type, key + ".type", rope.at("type"));
  if (type == "default" || is_plain_rope(type, rope)) return std::nullopt;
  CHECK_INPUT(
      type == "llama3",
      "{}: the rope type is {}, expected \"default\" or \"llama3\", or \"linear\" or \"yarn\" with the factor 1", where,
      type.dump());
  rope["original_max_position_embeddings"] = original_positions(json, rope, path, key);
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
  std::string scaling_key;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!given(json, key) || json.at(key).empty()) continue;
    const std::optional<RopeScaling> scaling = parse_rope_scaling(json, path, key);
    read_theta(json.at(key), fmt::format("{}.{}", key, kTheta));
    if (!scaling_key.empty()) expect_same_scaling(path, scaling, key, config.rope_scaling, scaling_key);
    config.rope_scaling = scaling;
    scaling_key = key;
  }
}

// Writes rope in the forms of both versions. If `replace` is false, writes only what is missing.
void write_rope(const ModelConfig& config, bool replace, Json& json) {
  Json scaling;  // The value of rope_scaling. Null without scaling.
  Json rope = {{"rope_theta", config.rope_theta}, {"rope_type", "default"}};
  if (config.rope_scaling) {
    scaling["rope_type"] = "llama3";
    for_each_field(*config.rope_scaling,
                   [&](const auto& field, const auto& value) { scaling[field.hf_name] = shape_to_json<Json>(value); });
    rope.update(scaling);
  }
  if (replace) json.erase("original_max_position_embeddings");
  const std::pair<const char*, Json> keys[] = {
      {"rope_theta", config.rope_theta}, {"rope_scaling", scaling}, {"rope_parameters", rope}};
  for (const auto& [key, value] : keys) {
    if (replace || (!given(json, key) && !value.is_null())) json[key] = value;
  }
}

// Returns max_position_embeddings of a model whose metadata lack it: the scaled length of its rope, or 0 if unknown.
int64_t unstated_positions(const ModelConfig& config) {
  if (!config.rope_scaling) return 0;
  return std::llround(config.rope_scaling->factor *
                      static_cast<double>(config.rope_scaling->original_max_position_embeddings));
}

// Returns a config.json without the shape and the rope.
Json new_hf_config(const ModelConfig& config, const HfMetadata& metadata) {
  const int64_t known = metadata.max_position_embeddings;
  const int64_t positions = std::max(known > 0 ? known : unstated_positions(config), metadata.seq_len);
  Json json = {{"max_position_embeddings", positions > 0 ? positions : 8192},
               {"hidden_act", "silu"},
               {"attention_bias", false},
               {"attention_dropout", 0.0},
               {"initializer_range", 0.02},
               {"bos_token_id", metadata.bos_token_id},
               {"eos_token_id", metadata.eos_token_id},
               {"use_cache", true}};
  if (config.qk_norm) {
    json.update({{"use_sliding_window", false}, {"sliding_window", nullptr}});
  } else {
    json["mlp_bias"] = false;
  }
  return json;
}

// Returns the value at a path such as "/config/data/seq_len", or null if there is none.
Json value_at(const Json& json, const char* path) {
  const Json::json_pointer pointer(path);
  return json.contains(pointer) ? json.at(pointer) : Json();
}

// Returns the longest data.seq_len of the run and of its stages that began before the step.
int64_t longest_seq_len(const Json& meta, int64_t step) {
  int64_t longest = find_value<int64_t>(meta, "/config/data/seq_len").value_or(0);
  int64_t begin = 0;
  const Json stages = value_at(meta, "/config/stages");
  for (const Json& stage : stages.is_array() ? stages : Json::array()) {
    if (begin >= step) break;
    longest = std::max(longest, find_value<int64_t>(stage, "/data/seq_len").value_or(0));
    begin += std::clamp(find_value<int64_t>(stage, "/steps").value_or(0), int64_t{0}, step - begin);
  }
  return longest;
}

// Replaces an id of the model with the id of the training data, unless they agree.
void take_id(const Json& id, const char* key, Json HfMetadata::*known, HfMetadata& metadata) {
  if (!id.is_number_integer()) return;
  const auto agrees = [&](const Json& ids) { return ids.is_array() ? has_value(ids, id) : ids == id; };
  Json* files[] = {&metadata.config, &metadata.generation_config};
  for (const Json* file : files) {
    if (file->is_object() && agrees(file->value(key, Json()))) return;
  }
  if (agrees(metadata.*known)) return;
  metadata.*known = id;
  for (Json* file : files) {
    if (file->is_object()) (*file)[key] = id;
  }
}

}  // namespace

ModelConfig parse_hf_config(const Json& json, const std::string& path) {
  const Architecture& architecture = architecture_of(json, path);
  for (const auto& [key, value] : json.items()) {
    if (!value.is_null()) check_key(key, value, path);
  }
  check_no_sliding_window(json, path);
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

std::vector<std::string> ignored_hf_keys(const Json& json) {
  std::vector<std::string> keys;
  const auto fields = shape_fields<ModelConfig>();
  for (const auto& [key, value] : json.items()) {
    const bool is_field = std::ranges::any_of(
        fields, [&key = key](const auto& field) { return field.hf_name != nullptr && field.hf_name == key; });
    // If use_sliding_window is given, check_no_sliding_window() has checked whether the window has an effect.
    const bool is_window = key == "sliding_window" && given(json, "use_sliding_window");
    if (!value.is_null() && !is_field && !is_window && is_ignored(key, value)) keys.push_back(key);
  }
  for (const std::string key : {"rope_parameters", "rope_scaling"}) {
    if (!given(json, key.c_str()) || !json.at(key).is_object()) continue;
    const Json type = rope_type_of(json.at(key));
    const std::string_view of_type = type == "default" ? "" : type == "llama3" ? kLlama3RopeKeys : kFactorRopeKeys;
    for (const auto& [name, value] : json.at(key).items()) {
      if (!value.is_null() && !has_name(kRopeKeys, name) && !has_name(of_type, name))
        keys.push_back(fmt::format("{}.{}", key, name));
    }
  }
  return keys;
}

HfMetadata parse_hf_metadata(const Json& json) {
  HfMetadata metadata;
  if (!json.is_object()) return metadata;
  const auto object_at = [&](const char* key) {
    return given(json, key) && json.at(key).is_object() ? json.at(key) : Json();
  };
  metadata.config = object_at(kHfConfigName);
  metadata.generation_config = object_at(kGenerationConfigName);
  const Json& config = metadata.config.is_object() ? metadata.config : json;
  const auto id_of = [&](const char* key) {
    const Json& generation = metadata.generation_config;
    return generation.is_object() && given(generation, key) ? generation.at(key) : config.value(key, Json());
  };
  metadata.bos_token_id = id_of("bos_token_id");
  metadata.eos_token_id = id_of("eos_token_id");
  metadata.max_position_embeddings = find_value<int64_t>(config, "/max_position_embeddings").value_or(0);
  return metadata;
}

HfMetadata hf_metadata_of(const Json& meta, int64_t step) {
  HfMetadata metadata;
  if (!meta.is_object()) return metadata;
  metadata = parse_hf_metadata(meta.value(kHfMetaKey, Json()));
  take_id(value_at(meta, "/config/data/bos_id"), "bos_token_id", &HfMetadata::bos_token_id, metadata);
  take_id(value_at(meta, "/config/data/eos_id"), "eos_token_id", &HfMetadata::eos_token_id, metadata);
  metadata.seq_len = longest_seq_len(meta, step);
  return metadata;
}

Json make_hf_config(const ModelConfig& config, const HfMetadata& metadata, DType dtype) {
  const auto* architecture = std::ranges::find(kArchitectures, config.qk_norm, &Architecture::qk_norm);
  const bool is_new = !metadata.config.is_object();
  Json json = is_new ? new_hf_config(config, metadata) : metadata.config;
  const int64_t known = metadata.max_position_embeddings;
  if (!is_new && metadata.seq_len > (known > 0 ? known : architecture->positions))
    json["max_position_embeddings"] = metadata.seq_len;
  std::optional<ModelConfig> before;
  if (!is_new) before = parse_hf_config(json, kHfConfigName);
  json["architectures"] = {architecture->class_name};
  json["model_type"] = architecture->model_type;
  const Json fields_before = before ? shape_to_json<Json>(*before) : Json::object();
  for_each_field(config, [&](const auto& field, const auto& value) {
    const Json now = shape_to_json<Json>(value);
    if (field.hf_name != nullptr && fields_before.value(field.name, Json()) != now) json[field.hf_name] = now;
  });
  const bool has_other_rope =
      !before || before->rope_theta != config.rope_theta || before->rope_scaling != config.rope_scaling;
  // Version 5 reads the form of version 4, but not the other way round.
  if (has_other_rope || given(json, "rope_parameters")) write_rope(config, has_other_rope, json);
  const bool has_dtype = json.contains("torch_dtype") || json.contains("dtype");
  for (const char* key : {"torch_dtype", "dtype"}) {
    if (!has_dtype || json.contains(key)) json[key] = dtype_name(dtype);
  }
  return json;
}

void check_describes(const Json& hf_config, const ModelConfig& model, const std::string& model_path) {
  const Json read = shape_to_json<Json>(parse_hf_config(hf_config, kHfConfigName));
  for_each_field(model, [&](const auto& field, const auto& value) {
    const Json ours = shape_to_json<Json>(value);
    CHECK_INPUT(read.at(field.name) == ours,
                "{}: its model.{} is {}, expected {}: Hugging Face's config.json cannot describe another model",
                model_path, field.name, ours.dump(), read.at(field.name).dump());
  });
}

Json make_generation_config(const HfMetadata& metadata) {
  if (metadata.generation_config.is_object()) return metadata.generation_config;
  Json json = {
      {"_from_model_config", true}, {"bos_token_id", metadata.bos_token_id}, {"eos_token_id", metadata.eos_token_id}};
  if (metadata.config.is_object() && given(metadata.config, "pad_token_id"))
    json["pad_token_id"] = metadata.config.at("pad_token_id");
  return json;
}

}  // namespace octavo

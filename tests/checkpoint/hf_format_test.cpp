#include "checkpoint/hf_format.h"

#include <gtest/gtest.h>

#include <string>

#include "core/error.h"
#include "core/files/json_input.h"
#include "model/architecture/model_fields.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

using Json = nlohmann::json;

// Returns the config.json of Llama 3.2 1B as transformers 4 writes it.
Json version_4_config() {
  return Json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 128000, "eos_token_id": [128001, 128008], "head_dim": 64, "hidden_act": "silu",
    "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072,
    "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16,
    "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0.dev0", "use_cache": true, "vocab_size": 128256})");
}

// Returns the config.json of Qwen3 0.6B as transformers 4 writes it.
Json qwen3_config() {
  return Json::parse(R"({
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
    "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
    "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
    "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true,
    "use_sliding_window": false, "vocab_size": 151936})");
}

std::string refusal(const Json& json) {
  return input_error_of([&] { parse_hf_config(json, "config.json"); });
}

// Returns the version 4 config with changes. A null removes a key.
Json changed(const Json& changes, Json json = version_4_config()) {
  json.merge_patch(changes);
  return json;
}

void expect_refused(const Json& changes, const std::string& part) {
  const std::string message = refusal(changed(changes));
  expect_mentions(message, {part});
  EXPECT_TRUE(message.starts_with("config.json: ")) << changes;
}

TEST(HfFormat, ReadsVersion4) {
  EXPECT_EQ(parse_hf_config(version_4_config(), "config.json"), model_preset("llama3_1b"));
  const Json older_key = changed({{"rope_scaling", {{"rope_type", nullptr}, {"type", "llama3"}}}});
  EXPECT_EQ(parse_hf_config(older_key, "config.json"), model_preset("llama3_1b"));
  const HfMetadata metadata = parse_hf_metadata(version_4_config());
  EXPECT_EQ(metadata.bos_token_id, 128000);
  EXPECT_EQ(metadata.eos_token_id, Json::array({128001, 128008}));
  EXPECT_EQ(metadata.max_position_embeddings, 131072);
}

TEST(HfFormat, FillsInWhatOldConfigsLeaveOut) {
  Json json = version_4_config();
  for (const char* key : {"head_dim", "num_key_value_heads", "rope_scaling", "rope_theta", "tie_word_embeddings"}) {
    json.erase(key);
  }
  const ModelConfig config = parse_hf_config(json, "config.json");
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.num_kv_heads, 32);
  EXPECT_EQ(config.rope_theta, 10000.0);
  EXPECT_FALSE(config.rope_scaling.has_value());
  EXPECT_FALSE(config.tie_word_embeddings);
  json["head_dim"] = nullptr;
  for (const Json& none : {Json(), Json::object()}) {
    json["rope_scaling"] = none;
    EXPECT_EQ(parse_hf_config(json, "config.json"), config);
  }
}

TEST(HfFormat, ReadsVersion5) {
  const std::string golden = std::string(OCTAVO_SOURCE_DIR) + "/tests/golden/";
  const ModelConfig gqa = parse_hf_config(read_json_file(golden + "gqa/config.json"), "gqa");
  EXPECT_EQ(gqa.rope_theta, 500000.0);
  EXPECT_FALSE(gqa.rope_scaling.has_value());
  EXPECT_EQ(gqa.num_heads, 2 * gqa.num_kv_heads);
  EXPECT_FALSE(gqa.tie_word_embeddings);
  const Json tied_json = read_json_file(golden + "tied_ropescaled/config.json");
  const ModelConfig tied = parse_hf_config(tied_json, "tied");
  ASSERT_TRUE(tied.rope_scaling.has_value());
  EXPECT_EQ(tied.rope_scaling->factor, tied_json.at("rope_parameters").at("factor"));
  EXPECT_EQ(tied.rope_scaling->original_max_position_embeddings,
            tied_json.at("rope_parameters").at("original_max_position_embeddings"));
  EXPECT_TRUE(tied.tie_word_embeddings);
}

TEST(HfFormat, WritesWhatBothVersionsRead) {
  HfMetadata metadata;
  metadata.bos_token_id = 1;
  for (const std::string& preset : model_preset_names()) {
    const ModelConfig config = model_preset(preset);
    const Json both = Json::parse(make_hf_config(config, metadata, DType::kFloat32).dump());
    Json version_4 = both, version_5 = both;
    version_4.erase("rope_parameters");
    version_5.erase("rope_scaling");
    version_5.erase("rope_theta");
    for (const Json& json : {both, version_4, version_5}) EXPECT_EQ(parse_hf_config(json, preset), config) << preset;
    EXPECT_EQ(both.at("torch_dtype"), "float32");
    EXPECT_EQ(both.at("dtype"), "float32");
    EXPECT_EQ(both.at("bos_token_id"), 1);
    EXPECT_TRUE(both.at("eos_token_id").is_null());
    EXPECT_EQ(both.at("architectures"), Json::array({config.qk_norm ? "Qwen3ForCausalLM" : "LlamaForCausalLM"}));
    EXPECT_EQ(both.at("model_type"), config.qk_norm ? "qwen3" : "llama");
    EXPECT_EQ(both.contains("use_sliding_window"), config.qk_norm);
  }
}

// Every field of one of the two models differs from its default, so a field that config.json does not describe fails
// the test.
TEST(HfFormat, DescribesEveryField) {
  const ModelConfig llama{512, 384, 3, 8, 2, 32, 40, 7.0, RopeScaling{16, 2, 3, 64}, 1e-3, true};
  ModelConfig qwen = llama;
  qwen.qk_norm = true;
  const Json defaults = shape_to_json<Json>(ModelConfig());
  for_each_field(qwen, [&](const auto& field, const auto& value) {
    EXPECT_NE(shape_to_json<Json>(value), defaults.at(field.name)) << field.name;
  });
  for (const ModelConfig& model : {llama, qwen}) {
    const Json json = make_hf_config(model, {}, DType::kFloat32);
    EXPECT_EQ(parse_hf_config(json, "config.json"), model);
    check_describes(json, model, "checkpoint");
  }
  Json other = make_hf_config(llama, {}, DType::kFloat32);
  other.erase("tie_word_embeddings");
  expect_mentions(message_of<InputError>([&] { check_describes(other, llama, "checkpoint"); }),
                  {"checkpoint: its model.tie_word_embeddings is true, expected false"});
}

// transformers 4 reads rope_scaling, transformers 5 reads rope_parameters, so a config.json with both is accepted only
// if they agree.
TEST(HfFormat, RefusesTwoRopesThatDiffer) {
  Json llama3 = version_4_config().at("rope_scaling");
  const auto with = [&](const Json& changes) {
    Json changed = llama3;
    changed.merge_patch(changes);
    return changed;
  };
  expect_refused({{"rope_parameters", with({{"factor", 8.0}})}},
                 "rope_scaling.factor is 32.0, but rope_parameters.factor is 8.0, expected the same");
  expect_refused({{"rope_parameters", with({{"original_max_position_embeddings", 4096}})}},
                 "rope_parameters.original_max_position_embeddings is 4096");
  expect_refused(
      {{"rope_parameters", {{"rope_theta", 500000.0}}}},
      "rope_scaling.rope_type is \"llama3\", but rope_parameters.rope_type is \"default\", expected the same");
  expect_refused({{"rope_parameters", with({{"rope_theta", 10000.0}})}},
                 "rope_parameters.rope_theta is 10000.0, but rope_theta is 500000.0, expected the same");
  expect_refused({{"rope_scaling", {{"rope_theta", 1e4}}}}, "rope_scaling.rope_theta is 10000.0, but rope_theta is");
  expect_refused({{"rope_scaling", {{"type", "default"}}}},
                 "rope_scaling.rope_type is \"llama3\", but rope_scaling.type is \"default\", expected the same");
  expect_refused({{"partial_rotary_factor", 0.5}}, "partial_rotary_factor is 0.5, expected 1");
  expect_refused({{"rope_parameters", with({{"partial_rotary_factor", 0.5}})}}, "rope_parameters: partial_rotary");

  Json equal = version_4_config();
  equal["rope_parameters"] = with({{"rope_theta", 500000}, {"type", "llama3"}, {"partial_rotary_factor", 1.0}});
  EXPECT_EQ(parse_hf_config(equal, "config.json"), model_preset("llama3_1b"));
  equal["rope_scaling"] = nullptr;
  EXPECT_EQ(parse_hf_config(equal, "config.json"), model_preset("llama3_1b"));
}

TEST(HfFormat, KnowsThePositions) {
  const auto positions = [](const char* preset, int64_t known, int64_t seq_len) -> int64_t {
    HfMetadata metadata;
    metadata.max_position_embeddings = known;
    metadata.seq_len = seq_len;
    return make_hf_config(model_preset(preset), metadata, DType::kFloat32).at("max_position_embeddings");
  };
  EXPECT_EQ(positions("llama3_8b", 0, 0), 8192);
  EXPECT_EQ(positions("llama3_8b", 0, 512), 512);
  EXPECT_EQ(positions("llama3_8b", 4096, 512), 4096);
  EXPECT_EQ(positions("llama3_8b", 4096, 16384), 16384);
  EXPECT_EQ(positions("llama3_1b", 0, 512), 32 * 8192);
}

TEST(HfFormat, RefusesWhatIsNotThisLlama) {
  expect_refused({{"model_type", "mistral"}}, "mistral");
  expect_refused({{"model_type", nullptr}}, "model_type");
  expect_refused({{"hidden_act", "gelu"}}, "gelu");
  expect_refused({{"attention_bias", true}}, "attention_bias");
  expect_refused({{"mlp_bias", true}}, "mlp_bias");
  expect_refused({{"quantization_config", {{"bits", 4}}}}, "quantization_config");
  for (const char* type : {"linear", "yarn", "dynamic", "longrope"}) {
    expect_refused({{"rope_scaling", {{"rope_type", type}}}}, type);
    expect_refused({{"rope_parameters", {{"rope_type", type}}}}, type);
  }
  expect_refused({{"rope_scaling", {{"factor", nullptr}}}}, "factor");
  expect_refused({{"rope_scaling", 3}}, "rope_scaling");
  expect_refused({{"hidden_size", nullptr}}, "hidden_size");
  expect_refused({{"vocab_size", "many"}}, "vocab_size");
  expect_refused({{"num_attention_heads", 0}}, "num_attention_heads");
  expect_refused({{"num_key_value_heads", 5}}, "num_kv_heads");
}

TEST(HfFormat, RefusesWhatChangesTheResult) {
  expect_refused({{"is_causal", false}}, "is_causal is false, expected true");
  expect_refused({{"is_encoder_decoder", true}}, "is_encoder_decoder is true, expected false");
  expect_refused({{"add_cross_attention", true}}, "add_cross_attention");
  expect_refused({{"pruned_heads", {{"1", {0, 2}}}}}, "pruned_heads");
  expect_refused({{"per_layer_config", {{"0", {{"intermediate_size", 8}}}}}}, "per_layer_config");
  expect_refused({{"attention_bias", "yes"}}, "attention_bias is \"yes\", expected false");
  expect_refused({{"hidden_act", "gelu"}}, R"(hidden_act is "gelu", expected "silu" or "swish")");
  expect_refused({{"layer_types", "full_attention"}}, "layer_types");
  expect_refused({{"use_sliding_window", true}, {"max_window_layers", 8}, {"sliding_window", 512}}, "use_sliding");
  // transformers has a window of 4096 by default.
  expect_refused({{"use_sliding_window", true}, {"max_window_layers", 8}}, "max_window_layers is 8");
  // A rope of its own for each type of layer has no theta at the place where a shared rope has it.
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    for (const Json& rope : {Json{{"rope_theta", 1e6}, {"rope_type", "default"}},
                             Json{{"rope_theta", 1e6}, {"rope_type", "yarn"}, {"factor", 4.0}}, Json::object()}) {
      expect_refused({{key, {{"full_attention", rope}}}}, fmt::format("{}.full_attention is an object", key));
    }
  }
  for (const Json& rope : {Json{{"rope_type", "linear"}, {"factor", 2.0}}, Json{{"rope_type", "yarn"}},
                           Json{{"type", "linear"}, {"factor", nullptr}}, Json{{"rope_type", "dynamic"}, {"factor", 1}},
                           Json{{"rope_type", "yarn"}, {"factor", 1}, {"attention_factor", 0.5}},
                           Json{{"rope_type", "mystery"}, {"factor", 1}}}) {
    Json json = version_4_config();
    json["rope_scaling"] = rope;
    expect_mentions(refusal(json), {"config.json: rope_scaling: the rope type is \""});
  }
}

TEST(HfFormat, AcceptsWhatChangesNothing) {
  const ModelConfig expected = model_preset("llama3_1b");
  for (const Json& changes :
       {Json{{"is_causal", true}}, Json{{"hidden_act", "swish"}}, Json{{"pruned_heads", Json::object()}},
        Json{{"use_sliding_window", true}, {"max_window_layers", 16}, {"sliding_window", 4096}},
        Json{{"use_sliding_window", true}, {"layer_types", Json::array({"full_attention"})}},
        Json{{"use_sliding_window", false}, {"sliding_window", 4096}}, Json{{"pad_token_id", 3}},
        Json{{"attention_dropout", 0}}, Json{{"pretraining_tp", 4}}, Json{{"temperature", 0.6}}}) {
    EXPECT_EQ(parse_hf_config(changed(changes), "config.json"), expected) << changes;
    EXPECT_TRUE(ignored_hf_keys(changed(changes)).empty()) << changes;
  }
  Json plain = changed({{"rope_scaling", nullptr}});
  const ModelConfig without_scaling = parse_hf_config(plain, "config.json");
  for (const Json& rope : {Json{{"rope_type", "linear"}, {"factor", 1.0}}, Json{{"type", "linear"}, {"factor", 1}},
                           Json{{"rope_type", "yarn"}, {"factor", 1.0}, {"beta_fast", 32}}}) {
    plain["rope_scaling"] = rope;
    EXPECT_EQ(parse_hf_config(plain, "config.json"), without_scaling) << rope;
    EXPECT_TRUE(ignored_hf_keys(plain).empty()) << rope;
  }
}

TEST(HfFormat, NamesKeysThatAreIgnored) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(ignored_hf_keys(version_4_config()), Names());
  EXPECT_EQ(ignored_hf_keys(qwen3_config()), Names());
  EXPECT_EQ(ignored_hf_keys(changed({{"attention_dropout", 0.1},
                                     {"logits_scaling", 8.0},
                                     {"no_such_key", false},
                                     {"sliding_window", 4096},
                                     {"rope_scaling", {{"beta_fast", 32}}}})),
            Names({"attention_dropout", "logits_scaling", "no_such_key", "sliding_window", "rope_scaling.beta_fast"}));
  EXPECT_EQ(
      ignored_hf_keys(changed({{"rope_scaling", nullptr},
                               {"rope_parameters", {{"rope_theta", 5e5}, {"factor", 8}, {"rope_type", "default"}}}})),
      Names({"rope_parameters.factor"}));
}

TEST(HfFormat, FindsTheLengthBeforeTheScaling) {
  const auto length_of = [](const Json& changes) {
    return parse_hf_config(changed(changes), "config.json").rope_scaling.value().original_max_position_embeddings;
  };
  const char* key = "original_max_position_embeddings";
  EXPECT_EQ(length_of(Json::object()), 8192);
  EXPECT_EQ(length_of({{key, 8192}}), 8192);
  EXPECT_EQ(length_of({{"rope_scaling", {{key, nullptr}}}, {key, 4096}}), 4096);
  EXPECT_EQ(length_of({{"rope_scaling", {{key, nullptr}}}}), 131072);
  expect_refused({{key, 4096}}, "rope_scaling.original_max_position_embeddings is 8192, but original_max_position");
  expect_refused({{"rope_scaling", {{key, nullptr}}}, {"max_position_embeddings", nullptr}}, key);
}

// A config.json that a run began from, and the metadata of a checkpoint of that run.
Json meta_of(const Json& config, const Json& data) {
  return {{kHfMetaKey, {{kHfConfigName, config}, {kGenerationConfigName, {{"eos_token_id", {128001, 128009}}}}}},
          {"config", {{"data", data}}}};
}

TEST(HfFormat, WritesTheFileOfTheModelAgain) {
  const Json unknown = {{"pad_token_id", 128004}, {"my_key", {1, 2}}, {"_name_or_path", "somewhere"}};
  const Json v4 = changed(unknown), qwen3 = changed(unknown, qwen3_config());
  for (const Json& json : {v4, qwen3, changed({{"rope_theta", nullptr}, {"rope_scaling", nullptr}}),
                           changed({{"rope_scaling", {{"original_max_position_embeddings", nullptr}}}})}) {
    const ModelConfig config = parse_hf_config(json, "config.json");
    EXPECT_EQ(make_hf_config(config, hf_metadata_of(meta_of(json, {{"seq_len", 64}}), 9), DType::kBFloat16), json);
  }
  // transformers 4 does not read rope_parameters.
  Json v5 = v4;
  v5["rope_parameters"] = v5["rope_scaling"];
  v5["rope_parameters"]["rope_theta"] = v5["rope_theta"];
  v5.erase("rope_theta");
  v5.erase("rope_scaling");
  const ModelConfig config = parse_hf_config(v5, "config.json");
  const Json written = make_hf_config(config, hf_metadata_of(meta_of(v5, {}), 9), DType::kBFloat16);
  for (const auto& [key, value] : v4.items()) EXPECT_EQ(written.at(key), value) << key;
  EXPECT_EQ(written.at("rope_parameters"), v5.at("rope_parameters"));
  EXPECT_EQ(written.size(), v5.size() + 2);
}

TEST(HfFormat, WritesWhatTrainingChanged) {
  const Json json = changed({{"original_max_position_embeddings", 8192}});
  const auto written = [&](const ModelConfig& config, const Json& data, const Json& stages, int64_t step) {
    Json meta = meta_of(json, data);
    meta["config"]["stages"] = stages;
    return make_hf_config(config, hf_metadata_of(meta, step), DType::kFloat32);
  };
  ModelConfig config = model_preset("llama3_1b");
  Json expected = changed({{"torch_dtype", "float32"}, {"max_position_embeddings", 262144}}, json);
  EXPECT_EQ(written(config, {{"seq_len", 262144}}, {}, 9), expected);
  const Json stages = {{{"steps", 5}}, {{"steps", 5}, {"data", {{"seq_len", 262144}}}}};
  EXPECT_EQ(written(config, {{"seq_len", 64}}, stages, 6), expected);
  expected["max_position_embeddings"] = 131072;
  EXPECT_EQ(written(config, {{"seq_len", 64}}, stages, 5), expected);
  config.tie_word_embeddings = false;
  expected["tie_word_embeddings"] = false;
  EXPECT_EQ(written(config, {}, {}, 9), expected);
  config.rope_theta = 4e6;
  const Json other_rope = written(config, {}, {}, 9);
  EXPECT_EQ(parse_hf_config(other_rope, "config.json"), config);
  EXPECT_EQ(other_rope.at("rope_theta"), 4e6);
}

// The data of a run may use one of the model's eos ids. Other ids replace those of the model.
TEST(HfFormat, KeepsTheIdsOfTheModelThatTheDataUses) {
  const auto ids = [](const Json& data) {
    const HfMetadata metadata = hf_metadata_of(meta_of(version_4_config(), data), 9);
    const Json config = make_hf_config(model_preset("llama3_1b"), metadata, DType::kFloat32);
    return Json{config.at("bos_token_id"), config.at("eos_token_id"),
                make_generation_config(metadata).at("eos_token_id")};
  };
  const Json of_model = {128000, {128001, 128008}, {128001, 128009}};
  for (const Json& data :
       {Json{}, Json{{"eos_id", nullptr}}, Json{{"bos_id", "auto"}, {"eos_id", "auto"}},
        Json{{"bos_id", 128000}, {"eos_id", 128001}}, Json{{"eos_id", 128008}}, Json{{"eos_id", 128009}}})
    EXPECT_EQ(ids(data), of_model) << data;
  EXPECT_EQ(ids({{"bos_id", 1}, {"eos_id", 2}}), Json({1, 2, 2}));
  // Checkpoints of earlier versions record the ids themselves.
  const Json older = {{kHfMetaKey, {{"bos_token_id", 1}, {"eos_token_id", {2, 3}}, {"max_position_embeddings", 512}}}};
  const HfMetadata metadata = hf_metadata_of(older, 0);
  EXPECT_TRUE(metadata.config.is_null());
  EXPECT_EQ(make_generation_config(metadata),
            (Json{{"_from_model_config", true}, {"bos_token_id", 1}, {"eos_token_id", {2, 3}}}));
  EXPECT_EQ(make_hf_config(model_preset("llama3_8b"), metadata, DType::kFloat32).at("max_position_embeddings"), 512);
}

TEST(HfFormat, ReadsQwen3) {
  EXPECT_EQ(parse_hf_config(qwen3_config(), "config.json"), model_preset("qwen3_0.6b"));
  Json json = qwen3_config();
  json.erase("head_dim");  // The default in transformers is 128 for every hidden size.
  json["hidden_size"] = 1000;
  json["sliding_window"] = 4096;  // This key has no effect without use_sliding_window.
  json["layer_types"] = Json::array({"full_attention", "full_attention"});
  ModelConfig expected = model_preset("qwen3_0.6b");
  expected.hidden_size = 1000;
  EXPECT_EQ(parse_hf_config(json, "config.json"), expected);
}

TEST(HfFormat, RefusesOtherQwen3) {
  const auto expect_message = [](const Json& changes, const std::string& message) {
    expect_mentions(refusal(changed(changes, qwen3_config())), {"config.json: " + message});
  };
  expect_message({{"model_type", "qwen3_moe"}}, R"(model_type is "qwen3_moe", expected "llama" or "qwen3")");
  expect_message({{"attention_bias", true}}, "attention_bias is true, expected false: Octavo's linears have no bias");
  expect_message({{"use_sliding_window", true}, {"sliding_window", 4096}, {"max_window_layers", 27}},
                 "use_sliding_window is true and max_window_layers is 27, expected false, or at least "
                 "num_hidden_layers 28: Octavo attends to all tokens");
  expect_message({{"layer_types", {"full_attention", "sliding_attention"}}},
                 R"(layer_types has "sliding_attention", expected only "full_attention")");
  expect_message({{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}}},
                 R"(rope_scaling: the rope type is "yarn", expected "default" or "llama3", )"
                 R"(or "linear" or "yarn" with the factor 1)");
}

}  // namespace
}  // namespace octavo

#include "checkpoint/hf_format.h"

#include <gtest/gtest.h>

#include <string>

#include "core/error.h"
#include "core/files/json_input.h"

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

std::string refusal(const Json& json) {
  try {
    parse_hf_config(json, "config.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

void expect_refused(const Json& changes, const std::string& part) {
  Json json = version_4_config();
  json.merge_patch(changes);
  const std::string message = refusal(json);
  EXPECT_NE(message.find(part), std::string::npos) << changes.dump() << " -> " << message;
  EXPECT_EQ(message.rfind("config.json: ", 0), 0u) << message;
}

TEST(HfFormat, ReadsVersion4) {
  EXPECT_EQ(parse_hf_config(version_4_config(), "config.json"), model_preset("llama3_1b"));
  const HfMetadata metadata = parse_hf_metadata(version_4_config());
  EXPECT_EQ(metadata.bos_token_id, 128000);
  EXPECT_EQ(metadata.eos_token_id, Json::array({128001, 128008}));
  EXPECT_EQ(metadata.max_position_embeddings, 131072);
}

TEST(HfFormat, ReadsTheOlderKeyOfTheRopeType) {
  Json json = version_4_config();
  json["rope_scaling"].erase("rope_type");
  json["rope_scaling"]["type"] = "llama3";
  EXPECT_EQ(parse_hf_config(json, "config.json"), model_preset("llama3_1b"));
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
    Json json = qwen3_config();
    json.merge_patch(changes);
    EXPECT_EQ(refusal(json), "config.json: " + message);
  };
  expect_message({{"model_type", "qwen3_moe"}}, R"(model_type is "qwen3_moe", expected "llama" or "qwen3")");
  expect_message({{"attention_bias", true}}, "attention_bias is true, expected false: Octavo's linears have no bias");
  expect_message({{"use_sliding_window", true}},
                 "use_sliding_window is true, expected false: Octavo attends to all tokens");
  expect_message({{"layer_types", {"full_attention", "sliding_attention"}}},
                 R"(layer_types has "sliding_attention", expected only "full_attention")");
  expect_message({{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}}},
                 R"(rope_scaling: the rope type is "yarn", expected "default" or "llama3")");
}

}  // namespace
}  // namespace octavo

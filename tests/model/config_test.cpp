#include "model/architecture/config.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>

#include "tests/kernels/op_fixture.h"

namespace octavo::config_test {
namespace {

TEST(ModelPresets, HaveThePublishedShapes) {
  EXPECT_EQ(model_preset_names(), (std::vector<std::string>{"llama3_1b", "llama3_1.8b", "llama3_3b", "llama3_8b",
                                                            "llama3_70b", "llama3_405b", "qwen3_0.6b", "qwen3_8b"}));
  for (const std::string& name : model_preset_names()) {
    const ModelConfig config = model_preset(name);
    const bool qwen = name.starts_with("qwen3");
    config.validate();
    EXPECT_EQ(config.vocab_size, qwen ? 151936 : 128256) << name;
    EXPECT_EQ(config.num_kv_heads, 8) << name;
    EXPECT_EQ(config.rope_theta, qwen ? 1000000 : 500000) << name;
    EXPECT_EQ(config.attention_width() == config.hidden_size, name != "qwen3_0.6b") << name;
    EXPECT_EQ(config.qk_norm, qwen) << name;
  }
  for (const auto& [name, factor] :
       std::map<std::string, double>{{"llama3_1b", 32}, {"llama3_3b", 32}, {"llama3_405b", 8}}) {
    const std::optional<RopeScaling> scaling = model_preset(name).rope_scaling;
    ASSERT_TRUE(scaling.has_value()) << name;
    EXPECT_EQ(scaling->factor, factor) << name;
    EXPECT_EQ(scaling->original_max_position_embeddings, 8192) << name;
  }
  EXPECT_FALSE(model_preset("llama3_8b").rope_scaling.has_value());
  expect_error<InputError>([] { model_preset("llama3_7b"); },
                           "model.preset is 'llama3_7b', expected one of llama3_1b, llama3_1.8b");
}

TEST(ModelConfig, FlopsPerToken) {
  // 8B at 8192 tokens: 6 (8,030,261,248 - 128256 * 4096) + 12 * 32 * 32 * 128 * 8192.
  EXPECT_DOUBLE_EQ(model_preset("llama3_8b").flops_per_token(8192), 57'914'449'920.0);
  // 1B has tied embeddings, so the table counts once: 6 * 1,235,814,400 + 12 * 16 * 32 * 64 * 2048.
  EXPECT_DOUBLE_EQ(model_preset("llama3_1b").flops_per_token(2048), 8'220'192'768.0);
}

TEST(ModelConfig, ValidateNamesTheFieldAndTheNumbers) {
  const auto expect_invalid = [](const std::function<void(ModelConfig&)>& change, const std::string& message) {
    ModelConfig config = model_preset("llama3_1b");
    change(config);
    expect_error<InputError>([&] { config.validate(); }, message);
  };
  expect_invalid([](auto& c) { c.hidden_size = 0; }, "model.hidden_size is 0, expected a positive number");
  expect_invalid([](auto& c) { c.intermediate_size = -1; }, "model.intermediate_size is -1");
  expect_invalid([](auto& c) { c.num_layers = 0; }, "model.num_layers is 0");
  expect_invalid([](auto& c) { c.num_heads = 0; }, "model.num_heads is 0");
  expect_invalid([](auto& c) { c.num_kv_heads = 0; }, "model.num_kv_heads is 0");
  expect_invalid([](auto& c) { c.head_dim = 0; }, "model.head_dim is 0");
  expect_invalid([](auto& c) { c.vocab_size = 0; }, "model.vocab_size is 0");
  expect_invalid([](auto& c) { c.num_kv_heads = 5; },
                 "model.num_kv_heads is 5, expected a divisor of model.num_heads 32; 4 or 8 would work");
  expect_invalid([](auto& c) { c.head_dim = 63; }, "model.head_dim is 63, rope needs an even number");
  expect_invalid([](auto& c) { c.head_dim = 48; }, "model.head_dim is 48, expected 32, 64, 80, 96, 128 or 256");
  expect_invalid([](auto& c) { c.hidden_size = 2049; },
                 "model.hidden_size is 2049, expected a multiple of model.num_heads 32; 2048 or 2080 would work");
  expect_invalid([](auto& c) { c.num_layers = 1'000'000; }, "model.num_layers is 1000000, expected at most 16384");
  expect_invalid([](auto& c) { c.vocab_size = int64_t{1} << 40; },
                 "model.vocab_size is 1099511627776, expected at most");
  expect_invalid(
      [](auto& c) { c.hidden_size = kMaxHidden, c.intermediate_size = kMaxIntermediate, c.num_layers = kMaxLayers; },
      "the model has 864779258232307712 parameters, expected at most 1125899906842624");
  expect_invalid([](auto& c) { c.rope_theta = std::numeric_limits<double>::infinity(); }, "model.rope_theta is inf");
  expect_invalid([](auto& c) { c.rope_scaling->factor = 1e300; }, "model.rope_scaling.factor is 1e+300");
  expect_invalid([](auto& c) { c.rope_theta = 0; }, "model.rope_theta is 0");
  expect_invalid([](auto& c) { c.rms_norm_eps = 0; }, "model.rms_norm_eps is 0");
  expect_invalid([](auto& c) { c.rope_scaling->factor = 0.5; }, "model.rope_scaling.factor is 0.5");
  expect_invalid([](auto& c) { c.rope_scaling->high_freq_factor = 1; }, "expected high > low > 0");
  expect_invalid([](auto& c) { c.rope_scaling->low_freq_factor = 0; }, "expected high > low > 0");
  expect_invalid([](auto& c) { c.rope_scaling->original_max_position_embeddings = 0; },
                 "original_max_position_embeddings is 0");
}

}  // namespace
}  // namespace octavo::config_test

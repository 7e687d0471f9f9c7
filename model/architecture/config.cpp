#include "model/architecture/config.h"

#include <fmt/ranges.h>

#include <array>
#include <cmath>

#include "core/error.h"
#include "core/suggestions.h"
#include "kernels/attention/sdpa.h"
#include "model/architecture/model_fields.h"

namespace octavo {

namespace {

struct Preset {
  const char* name;
  ModelConfig config;
};

// Shapes from the config.json of published models. llama3_1.8b is the 1.8B model of PyTorch's work on float8.
const std::array<Preset, 8>& presets() {
  static const RopeScaling scaling_32{32.0, 1.0, 4.0, 8192};
  static const std::array<Preset, 8> all{{
      {"llama3_1b", {2048, 8192, 16, 32, 8, 64, 128256, 500000.0, scaling_32, 1e-5, true}},
      {"llama3_1.8b", {2048, 7168, 24, 16, 8, 128, 128256, 500000.0, std::nullopt, 1e-5, false}},
      {"llama3_3b", {3072, 8192, 28, 24, 8, 128, 128256, 500000.0, scaling_32, 1e-5, true}},
      {"llama3_8b", {4096, 14336, 32, 32, 8, 128, 128256, 500000.0, std::nullopt, 1e-5, false}},
      {"llama3_70b", {8192, 28672, 80, 64, 8, 128, 128256, 500000.0, std::nullopt, 1e-5, false}},
      {"llama3_405b",
       {16384, 53248, 126, 128, 8, 128, 128256, 500000.0, RopeScaling{8.0, 1.0, 4.0, 8192}, 1e-5, false}},
      {"qwen3_0.6b", {1024, 3072, 28, 16, 8, 128, 151936, 1000000.0, std::nullopt, 1e-6, true, true}},
      {"qwen3_8b", {4096, 12288, 36, 32, 8, 128, 151936, 1000000.0, std::nullopt, 1e-6, false, true}},
  }};
  return all;
}

constexpr double kMaxRopeFactor = 1e6;

// Checks each field separately. The factors of rope scaling have other bounds than the fields of the model.
template <typename Struct>
void check_fields(const Struct& fields, const char* section) {
  for_each_field(fields, [&](const auto& field, const auto& value) {
    using Value = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, int64_t>) {
      CHECK_INPUT(value > 0, "{}.{} is {}, expected a positive number", section, field.name, value);
      CHECK_INPUT(value <= field.most, "{}.{} is {}, expected at most {}", section, field.name, value, field.most);
    } else if constexpr (std::is_same_v<Value, double> && std::is_same_v<Struct, ModelConfig>) {
      CHECK_INPUT(value > 0 && std::isfinite(value), "{}.{} is {}, expected a positive number", section, field.name,
                  value);
    } else if constexpr (std::is_same_v<Value, std::optional<RopeScaling>>) {
      if (value) check_fields(*value, "model.rope_scaling");
    }
  });
}

void check_rope(const ModelConfig& model) {
  CHECK_INPUT(model.rope_theta >= 1, "model.rope_theta is {}, expected at least 1", model.rope_theta);
  if (!model.rope_scaling) return;
  const RopeScaling& scaling = *model.rope_scaling;
  CHECK_INPUT(scaling.factor >= 1 && scaling.factor <= kMaxRopeFactor,
              "model.rope_scaling.factor is {}, expected from 1 to {}", scaling.factor, kMaxRopeFactor);
  CHECK_INPUT(scaling.high_freq_factor > scaling.low_freq_factor && scaling.low_freq_factor > 0 &&
                  std::isfinite(scaling.high_freq_factor),
              "model.rope_scaling.high_freq_factor is {} and low_freq_factor {}, expected high > low > 0",
              scaling.high_freq_factor, scaling.low_freq_factor);
}

// Checks the shape for all devices, so that a model that trains on a CPU also trains on a GPU.
void check_attention(const ModelConfig& model) {
  CHECK_INPUT(model.num_heads % model.num_kv_heads == 0,
              "model.num_kv_heads is {}, expected a divisor of model.num_heads {}{}", model.num_kv_heads,
              model.num_heads, would_work(divisors_near(model.num_kv_heads, model.num_heads)));
  CHECK_INPUT(model.head_dim % 2 == 0, "model.head_dim is {}, rope needs an even number", model.head_dim);
  // Hugging Face's Llama models require that num_heads divides hidden_size.
  CHECK_INPUT(model.qk_norm || model.hidden_size % model.num_heads == 0,
              "model.hidden_size is {}, expected a multiple of model.num_heads {}{}", model.hidden_size,
              model.num_heads, would_work(multiples_near(model.hidden_size, model.num_heads)));
  CHECK_INPUT(sdpa_has_kernels_for(model.head_dim),
              "model.head_dim is {}, expected {}, the head sizes that attention has kernels for", model.head_dim,
              one_of(kSdpaHeadSizes));
}

}  // namespace

int64_t ModelConfig::num_parameters() const {
  return num_matmul_parameters() + (tie_word_embeddings ? 0 : vocab_size * hidden_size);
}

int64_t ModelConfig::num_matmul_parameters() const {
  const int64_t attention = hidden_size * qkv_width() + attention_width() * hidden_size;
  const int64_t mlp = 3 * hidden_size * intermediate_size;
  const int64_t norms = 2 * hidden_size + (qk_norm ? 2 * head_dim : 0);
  return num_layers * (attention + mlp + norms) + hidden_size + vocab_size * hidden_size;
}

double ModelConfig::flops_per_token(int64_t seq_len) const {
  return 6.0 * static_cast<double>(num_matmul_parameters()) +
         12.0 * static_cast<double>(num_layers * attention_width() * seq_len);
}

void ModelConfig::validate(const std::string& where) const {
  try {
    check_fields(*this, "model");
    CHECK_INPUT(num_parameters() <= kMaxParameters, "the model has {} parameters, expected at most {}",
                num_parameters(), kMaxParameters);
    check_attention(*this);
    check_rope(*this);
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}{}{}", where, where.empty() ? "" : ": ", error.what()));
  }
}

std::vector<std::string> model_preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.emplace_back(preset.name);
  return names;
}

ModelConfig model_preset(const std::string& name) {
  for (const Preset& preset : presets()) {
    if (name == preset.name) return preset.config;
  }
  throw InputError(
      fmt::format("model.preset is '{}', expected one of {}", name, fmt::join(model_preset_names(), ", ")));
}

}  // namespace octavo

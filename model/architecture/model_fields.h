// The fields of a model's shape. The model section of configs, manifests and Hugging Face's config.json iterate over
// these lists. A new field is a member of ModelConfig and a row here. If its row has Presence::kDefault, files that
// were written without the field still load.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "model/architecture/config.h"

namespace octavo {

// The way in which a reader treats a missing field.
enum class Presence : uint8_t {
  kRequired,  // Refuses the file.
  kDerived,   // Derives the field from others. Refuses a manifest, because manifests contain all fields.
  kDefault,   // Takes the default of the member.
};

// One field of `Struct`: ModelConfig or RopeScaling.
template <typename Struct>
struct ShapeField {
  const char* name;     // Name in configs and manifests.
  const char* hf_name;  // Name in Hugging Face's config.json. Null: checkpoint/hf_format.cpp reads and writes it.
  std::variant<int64_t Struct::*, double Struct::*, bool Struct::*, std::optional<RopeScaling> Struct::*> member;
  int64_t most;  // Maximum of an integer, whose minimum is 1. A floating-point number must be positive.
  Presence presence;
  const char* sentence;
};

// clang-format off
inline constexpr ShapeField<ModelConfig> kModelFields[] = {
    {"hidden_size", "hidden_size", &ModelConfig::hidden_size, kMaxHidden, Presence::kRequired, "Width of the residual stream. It must be a multiple of num_heads unless qk_norm is true."},
    {"intermediate_size", "intermediate_size", &ModelConfig::intermediate_size, kMaxIntermediate, Presence::kRequired, "Width of the MLP between gate_up and down."},
    {"num_layers", "num_hidden_layers", &ModelConfig::num_layers, kMaxLayers, Presence::kRequired, "Number of transformer blocks."},
    {"num_heads", "num_attention_heads", &ModelConfig::num_heads, kMaxHeads, Presence::kRequired, "Number of query heads."},
    {"num_kv_heads", "num_key_value_heads", &ModelConfig::num_kv_heads, kMaxHeads, Presence::kDerived, "Number of key and value heads, a divisor of num_heads. The default is the preset's, or num_heads without a preset."},
    {"head_dim", "head_dim", &ModelConfig::head_dim, kMaxHeadDim, Presence::kDerived, "Size of an attention head, which is 32, 64, 80, 96, 128 or 256. The default is hidden_size / num_heads unless the preset has another one."},
    {"vocab_size", "vocab_size", &ModelConfig::vocab_size, kMaxVocab, Presence::kRequired, "Size of the vocabulary, which is the number of rows of the embedding table."},
    {"rope_theta", nullptr, &ModelConfig::rope_theta, 0, Presence::kDefault, "Base of the frequencies of the rotary embedding."},
    {"rope_scaling", nullptr, &ModelConfig::rope_scaling, 0, Presence::kDefault, "Llama 3.1's scaling of the rotary embedding. none removes the preset's scaling."},
    {"rms_norm_eps", "rms_norm_eps", &ModelConfig::rms_norm_eps, 0, Presence::kDefault, "Number that RMSNorm adds to the mean square."},
    {"tie_word_embeddings", "tie_word_embeddings", &ModelConfig::tie_word_embeddings, 0, Presence::kDefault, "Whether lm_head and the embedding share one weight."},
    {"qk_norm", nullptr, &ModelConfig::qk_norm, 0, Presence::kDefault, "Whether RMSNorm is applied to each query and key head before rope, as in Qwen3."},
};

inline constexpr ShapeField<RopeScaling> kRopeScalingFields[] = {
    {"factor", "factor", &RopeScaling::factor, 0, Presence::kRequired, "Factor by which the frequencies of the longest wavelengths are divided."},
    {"low_freq_factor", "low_freq_factor", &RopeScaling::low_freq_factor, 0, Presence::kRequired, "Wavelengths longer than original_max_position_embeddings divided by this number are scaled by the whole factor."},
    {"high_freq_factor", "high_freq_factor", &RopeScaling::high_freq_factor, 0, Presence::kRequired, "Wavelengths shorter than original_max_position_embeddings divided by this number are not scaled."},
    {"original_max_position_embeddings", "original_max_position_embeddings", &RopeScaling::original_max_position_embeddings, kMaxPositions, Presence::kRequired, "Sequence length of the model before the scaling."},
};
// clang-format on

template <typename Struct>
constexpr std::span<const ShapeField<Struct>> shape_fields() {
  if constexpr (std::is_same_v<Struct, ModelConfig>)
    return kModelFields;
  else
    return kRopeScalingFields;
}

// Calls visit(field, member) for each field of a ModelConfig or RopeScaling, in the order of the list. A member is an
// int64_t, a double, a bool or the std::optional<RopeScaling>. It is const if `shape` is const.
template <typename Shape, typename Visit>
void for_each_field(Shape& shape, const Visit& visit) {
  for (const auto& field : shape_fields<std::remove_const_t<Shape>>())
    std::visit([&](auto member) { visit(field, shape.*member); }, field.member);
}

inline std::vector<std::string> model_field_names() {
  std::vector<std::string> names;
  for (const auto& field : kModelFields) names.emplace_back(field.name);
  return names;
}

// Converts a shape, or a member of it, to JSON. `Json` is nlohmann::json or ordered_json.
template <typename Json, typename Value>
Json shape_to_json(const Value& value) {
  if constexpr (std::is_arithmetic_v<Value>) {
    return value;
  } else if constexpr (std::is_same_v<Value, std::optional<RopeScaling>>) {
    return value ? shape_to_json<Json>(*value) : Json(nullptr);
  } else {
    Json object = Json::object();
    for_each_field(value,
                   [&](const auto& field, const auto& member) { object[field.name] = shape_to_json<Json>(member); });
    return object;
  }
}

}  // namespace octavo

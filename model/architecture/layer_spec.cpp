#include "model/architecture/layer_spec.h"

#include <cmath>

#include "core/error.h"

namespace octavo {

namespace {

Recompute recompute_of(const ActivationCheckpointing& checkpointing, int64_t layer) {
  using Mode = ActivationCheckpointing::Mode;
  const Mode mode = checkpointing.mode;
  CHECK(mode != Mode::kAuto, "activation checkpointing of mode auto, expected it to be decided");
  if (mode == Mode::kSelective) return Recompute::kCheap;
  if (mode != Mode::kBlock) return mode == Mode::kFull ? Recompute::kBlock : Recompute::kNothing;
  const auto up_to = [&](int64_t i) { return std::floor(static_cast<double>(i) * checkpointing.ratio + 0.5); };
  return up_to(layer + 1) > up_to(layer) ? Recompute::kBlock : Recompute::kNothing;
}

}  // namespace

std::vector<LayerSpec> layer_specs(const ModelConfig& model, const PrecisionConfig& precision,
                                   const ActivationCheckpointing& checkpointing) {
  const int64_t last_layers = model.num_layers - precision.bf16_last_layers;
  std::vector<LayerSpec> specs;
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const bool in_bfloat16 = layer < precision.bf16_first_layers || layer >= last_layers;
    specs.push_back({.recipe = in_bfloat16 ? LinearPrecision::kBFloat16 : precision.linear,
                     .recompute = recompute_of(checkpointing, layer)});
  }
  return specs;
}

}  // namespace octavo

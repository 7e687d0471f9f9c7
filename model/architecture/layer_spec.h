// LayerSpec is everything that may differ between the layers of a model. Layers with equal specs run the same ops.
//
// Code that treats some layers or pipeline stages as equal compares whole specs. Code that adds up the work of layers
// names every member of the spec in a structured binding. So a new member either takes effect or does not compile.
#pragma once

#include <compare>
#include <vector>

#include "model/architecture/activation_checkpointing.h"
#include "model/architecture/config.h"
#include "model/architecture/precision.h"

namespace octavo {

struct LayerSpec {
  LinearPrecision recipe = LinearPrecision::kBFloat16;  // Recipe of the linears.
  Recompute recompute = Recompute::kNothing;            // Part of the forward that backward computes again.

  auto operator<=>(const LayerSpec&) const = default;
};

// Returns the specs of all layers of the model, in order. Mode block with ratio p recomputes floor(num_layers p + 1/2)
// layers: layer i if floor((i + 1) p + 1/2) > floor(i p + 1/2).
// Requires: the mode of `checkpointing` is not auto.
std::vector<LayerSpec> layer_specs(const ModelConfig& model, const PrecisionConfig& precision,
                                   const ActivationCheckpointing& checkpointing);

}  // namespace octavo

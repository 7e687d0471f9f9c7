// Settings under which the layers of a model differ. Tests of code that treats layers as equal, or adds them up, run
// with all of them.
#pragma once

#include "model/architecture/layer_spec.h"

namespace octavo {

// A change of a model's settings, after which the second and the third layer differ in one property, a member of
// LayerSpec. The layers before and after may differ in it too.
struct UnevenLayers {
  const char* property;
  void (*change)(ModelConfig&, PrecisionConfig&, ActivationCheckpointing&);

  // Returns the specs of the layers of a model after the change.
  std::vector<LayerSpec> specs(ModelConfig model) const {
    PrecisionConfig precision;
    ActivationCheckpointing checkpointing{.mode = ActivationCheckpointing::Mode::kNone};
    change(model, precision, checkpointing);
    return layer_specs(model, precision, checkpointing);
  }
};

// One change for each property.
inline constexpr UnevenLayers kUnevenLayers[] = {
    {"recipe",
     [](ModelConfig&, PrecisionConfig& precision, ActivationCheckpointing&) {
       precision.linear = LinearPrecision::kFp8Tensorwise;
       precision.bf16_first_layers = 2;
     }},
    {"recompute",
     [](ModelConfig&, PrecisionConfig&, ActivationCheckpointing& checkpointing) {
       checkpointing = {.mode = ActivationCheckpointing::Mode::kBlock, .ratio = 0.5};
     }},
};

}  // namespace octavo

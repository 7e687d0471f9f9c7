#include "model/architecture/activation_checkpointing.h"

#include <cmath>

#include "core/error.h"

namespace octavo {

Recompute recompute_of(const ActivationCheckpointing& checkpointing, int64_t layer) {
  using Mode = ActivationCheckpointing::Mode;
  CHECK(checkpointing.mode != Mode::kAuto, "activation checkpointing of mode auto, expected it to be decided");
  switch (checkpointing.mode) {
    case Mode::kSelective:
      return Recompute::kCheap;
    case Mode::kFull:
      return Recompute::kBlock;
    case Mode::kBlock: {
      const auto up_to = [&](int64_t i) { return std::floor(static_cast<double>(i) * checkpointing.ratio + 0.5); };
      return up_to(layer + 1) > up_to(layer) ? Recompute::kBlock : Recompute::kNothing;
    }
    default:
      return Recompute::kNothing;
  }
}

Tensor SharedActivations::get(const std::string& name, DType dtype, std::initializer_list<int64_t> shape,
                              Arena& arena) {
  Tensor& tensor = tensors_[name];
  if (!tensor.defined()) tensor = arena.allocate("shared activations " + name, dtype, shape, Lifetime::kBlock);
  return tensor;
}

}  // namespace octavo

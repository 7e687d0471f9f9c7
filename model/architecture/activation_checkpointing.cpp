#include "model/architecture/activation_checkpointing.h"

namespace octavo {

Tensor SharedActivations::get(const std::string& name, DType dtype, std::initializer_list<int64_t> shape,
                              Arena& arena) {
  Tensor& tensor = tensors_[name];
  if (!tensor.defined()) tensor = arena.allocate("shared activations " + name, dtype, shape, Lifetime::kBlock);
  return tensor;
}

}  // namespace octavo

#include "app/run/device_scalars.h"

#include <utility>

#include "kernels/math/reduce.h"

namespace octavo {

DeviceScalars::DeviceScalars(std::vector<DeviceScalar> scalars, Arena& arena) : scalars_(std::move(scalars)) {
  std::erase_if(scalars_, [](const DeviceScalar& scalar) { return !scalar.is_used; });
  if (!scalars_.empty()) sums_ = arena.allocate("scalars", DType::kFloat32, {std::ssize(scalars_)}, Lifetime::kStep);
}

void DeviceScalars::zero(Stream& stream) const {
  if (sums_.defined()) stream.zero(sums_);
}

void DeviceScalars::add_micro_batch(Stream& stream) const {
  for (int64_t i = 0; i < std::ssize(scalars_); ++i) {
    const Tensor& values = scalars_[static_cast<size_t>(i)].values;
    if (values.defined()) sum({.out = sums_.rows(i, i + 1), .x = values}, stream);
  }
}

void DeviceScalars::reduce(Communicator& tokens, Stream& stream) const {
  if (sums_.defined()) tokens.all_reduce_sum(sums_, stream, "scalars");
}

}  // namespace octavo

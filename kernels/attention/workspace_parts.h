// Tensors one behind the other in a workspace, or nowhere where only their size is asked for.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "core/tensor.h"

namespace octavo {

class WorkspaceParts {
 public:
  // In `memory`, or nowhere where that is null.
  explicit WorkspaceParts(void* memory) : memory_(static_cast<char*>(memory)) {}

  Tensor take(DType dtype, std::initializer_list<int64_t> dims) {
    const Tensor tensor(memory_ == nullptr ? nullptr : memory_ + bytes_, dtype, dims);
    bytes_ += (tensor.bytes() + kAlignment - 1) / kAlignment * kAlignment;
    return tensor;
  }
  // Of all that was taken, a multiple of 256.
  int64_t bytes() const { return bytes_; }

 private:
  static constexpr int64_t kAlignment = 256;

  char* memory_;
  int64_t bytes_ = 0;
};

}  // namespace octavo

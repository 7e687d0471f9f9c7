// WorkspaceParts places tensors one after the other in a workspace, or computes only their total size.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "core/tensor.h"

namespace octavo {

class WorkspaceParts {
 public:
  // Places tensors in `memory`. With null, tensors have no memory and only the size is computed.
  explicit WorkspaceParts(void* memory) : memory_(static_cast<char*>(memory)) {}

  Tensor take(DType dtype, std::initializer_list<int64_t> dims) {
    const Tensor tensor(memory_ == nullptr ? nullptr : memory_ + bytes_, dtype, dims);
    bytes_ += (tensor.bytes() + kAlignment - 1) / kAlignment * kAlignment;
    return tensor;
  }
  // Returns the total size of all tensors, a multiple of 256.
  int64_t bytes() const { return bytes_; }

 private:
  static constexpr int64_t kAlignment = 256;

  char* memory_;
  int64_t bytes_ = 0;
};

}  // namespace octavo

// Tensor: a view of dense row-major memory with a dtype and a shape. It owns nothing. The memory belongs to an Arena,
// or to staging memory on the host. Copying a Tensor copies the view. Constness is shallow, as in std::span.
// Requires: the memory outlives the view.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "core/dtype.h"

namespace octavo {

// Returns the product of the dimensions.
int64_t numel_of(std::span<const int64_t> shape);
// Returns "[4, 128]", for messages.
std::string describe_shape(std::span<const int64_t> shape);

class Tensor {
 public:
  static constexpr int kMaxDims = 4;

  Tensor() = default;
  // `data` points to the first element. Dimensions are outermost first, at most kMaxDims. Throws if one is negative.
  Tensor(void* data, DType dtype, std::initializer_list<int64_t> shape);

  bool defined() const { return data_ != nullptr; }
  DType dtype() const { return dtype_; }
  int ndim() const { return ndim_; }
  int64_t dim(int i) const { return shape_[static_cast<size_t>(i < 0 ? ndim_ + i : i)]; }
  int64_t numel() const { return numel_of(shape()); }
  int64_t bytes() const { return numel() * dtype_bytes(dtype_); }
  bool same_shape(const Tensor& other) const { return ndim_ == other.ndim_ && shape_ == other.shape_; }
  std::string describe() const;  // Returns "float32 [16, 256]".

  void* raw() const { return data_; }
  // Returns a typed pointer to the elements. Throws if T is not the tensor's dtype.
  template <typename T>
  T* data() const {
    expect_dtype(DTypeOf<T>::value);
    return static_cast<T*>(data_);
  }

  // Returns rows [begin, end) of the outermost dimension.
  Tensor rows(int64_t begin, int64_t end) const;
  // Returns the same elements with another shape of equal size.
  Tensor view(std::initializer_list<int64_t> shape) const;

 private:
  std::span<const int64_t> shape() const { return {shape_.data(), static_cast<size_t>(ndim_)}; }
  void expect_dtype(DType expected) const;

  void* data_ = nullptr;
  DType dtype_ = DType::kFloat32;
  int ndim_ = 0;
  std::array<int64_t, kMaxDims> shape_{};
};

// Throws unless `tensor` has this dtype and shape. `name` is its name in the message.
void expect_tensor(const Tensor& tensor, const char* name, DType dtype, std::initializer_list<int64_t> shape);

// Throws an Error which says that `dtype` is not a compute dtype (float32 or bfloat16).
[[noreturn]] void refuse_dtype(DType dtype);

}  // namespace octavo

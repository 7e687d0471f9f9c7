#include "core/tensor.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "core/error.h"

namespace octavo {

int64_t numel_of(std::span<const int64_t> shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::string describe_shape(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

Tensor::Tensor(void* data, DType dtype, std::initializer_list<int64_t> shape)
    : data_(data), dtype_(dtype), ndim_(static_cast<int>(shape.size())) {
  CHECK(shape.size() <= kMaxDims, "a tensor has at most {} dimensions, got {}", int{kMaxDims}, shape.size());
  std::ranges::copy(shape, shape_.begin());
  CHECK(std::ranges::all_of(shape, [](int64_t d) { return d >= 0; }), "negative dimension in {}",
        describe_shape(this->shape()));
}

std::string Tensor::describe() const { return fmt::format("{} {}", dtype_name(dtype_), describe_shape(shape())); }

void Tensor::expect_dtype(DType expected) const {
  CHECK(dtype_ == expected, "expected a {} tensor, got {}", dtype_name(expected), describe());
}

Tensor Tensor::rows(int64_t begin, int64_t end) const {
  CHECK(ndim_ > 0 && 0 <= begin && begin <= end && end <= shape_[0], "rows {} to {} of {} do not exist", begin, end,
        describe());
  Tensor slice = *this;
  const int64_t row_bytes = shape_[0] == 0 ? 0 : bytes() / shape_[0];
  slice.data_ = static_cast<char*>(data_) + begin * row_bytes;
  slice.shape_[0] = end - begin;
  return slice;
}

Tensor Tensor::view(std::initializer_list<int64_t> shape) const {
  Tensor result(data_, dtype_, shape);
  CHECK(result.numel() == numel(), "cannot view {} as {}", describe(), result.describe());
  return result;
}

void expect_tensor(const Tensor& tensor, const char* name, DType dtype, std::initializer_list<int64_t> shape) {
  const Tensor expected(tensor.raw(), dtype, shape);
  CHECK(tensor.defined() || expected.numel() == 0, "{} is missing, expected {}", name, expected.describe());
  CHECK(tensor.dtype() == dtype && tensor.same_shape(expected), "{} is {}, expected {}", name, tensor.describe(),
        expected.describe());
}

void refuse_dtype(DType dtype) {
  throw Error(fmt::format("expected a float32 or bfloat16 tensor, got {}", dtype_name(dtype)));
}

}  // namespace octavo

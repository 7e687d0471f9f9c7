#include "checkpoint/tensor_slice.h"

#include <algorithm>
#include <vector>

#include "core/error.h"

namespace octavo {
namespace {

int64_t width(const TensorSlice& slice) { return slice.columns.end - slice.columns.begin; }

// Returns the index of an element in the slice.
int64_t element(const TensorSlice& slice, int64_t row, int64_t column) {
  return row * width(slice) + column - slice.columns.begin - slice.begin;
}

// Returns the columns of a row that are in the slice; begin >= end if there are none.
ColumnRange columns_of_row(const TensorSlice& slice, int64_t row) {
  const int64_t row_begin = row * width(slice);
  return {slice.columns.begin + std::max<int64_t>(slice.begin - row_begin, 0),
          slice.columns.begin + std::min(slice.end - row_begin, width(slice))};
}

// Returns the place in the tensor of element `index` of the columns, such as "[3, 17]".
std::string describe_place(std::span<const int64_t> shape, ColumnRange columns, int64_t index) {
  if (!columns.none()) {
    const int64_t width = columns.end - columns.begin;
    return fmt::format("[{}, {}]", index / width, columns.begin + index % width);
  }
  std::vector<int64_t> place(shape.size());
  for (size_t i = shape.size(); i-- > 0; index /= shape[i]) place[i] = index % shape[i];
  return describe_shape(place);
}

// Returns the index of the first of `count` numbers whose exponent bits are all ones, as only in NaN and infinities, or
// `count`.
template <typename Bits>
int64_t first_not_finite(const void* values, int64_t count, Bits exponent) {
  constexpr int64_t kElements = 4096;  // Number of elements that are checked without a branch.
  const auto* bits = static_cast<const Bits*>(values);
  for (int64_t begin = 0; begin < count; begin += kElements) {
    const int64_t end = std::min(begin + kElements, count);
    bool found = false;
    for (int64_t i = begin; i < end; ++i) found |= (bits[i] & exponent) == exponent;
    if (!found) continue;
    return std::find_if(bits + begin, bits + end, [&](Bits x) { return (x & exponent) == exponent; }) - bits;
  }
  return count;
}

}  // namespace

void check_columns(const std::string& where, std::span<const int64_t> shape, ColumnRange columns) {
  if (columns.none()) return;
  CHECK(shape.size() == 2, "{} {}: columns {} to {}, but the tensor is not 2-dimensional", where, describe_shape(shape),
        columns.begin, columns.end);
  CHECK(0 <= columns.begin && columns.begin < columns.end && columns.end <= shape[1],
        "{} {}: columns {} to {}, expected a range within columns 0 to {}", where, describe_shape(shape), columns.begin,
        columns.end, shape[1]);
}

ColumnRange normalized_columns(std::span<const int64_t> shape, ColumnRange columns) {
  return shape.size() == 2 && columns == ColumnRange{0, shape[1]} ? ColumnRange{} : columns;
}

int64_t slice_numel(std::span<const int64_t> shape, ColumnRange columns) {
  return columns.none() ? numel_of(shape) : shape[0] * (columns.end - columns.begin);
}

std::string describe_slice(std::span<const int64_t> shape, ColumnRange columns) {
  return columns.none() ? describe_shape(shape)
                        : fmt::format("{} columns {} to {}", describe_shape(shape), columns.begin, columns.end);
}

TensorSlice checked_slice(const std::string& where, std::span<const int64_t> shape, ColumnRange columns, int64_t begin,
                          int64_t end) {
  check_columns(where, shape, columns);
  const int64_t numel = slice_numel(shape, columns);
  CHECK(0 <= begin && begin <= end && end <= numel,
        "{} {}: elements {} to {}, expected a range within elements 0 to {}", where, describe_slice(shape, columns),
        begin, end, numel);
  if (columns.none()) columns.end = shape.size() == 2 ? shape[1] : numel;
  return {columns, begin, end};
}

bool overlap(const TensorSlice& a, const TensorSlice& b) {
  bool found = false;
  for_each_run(a, b, [&](int64_t, int64_t, int64_t) { found = true; });
  return found;
}

void check_finite(const std::string& where, std::span<const int64_t> shape, ColumnRange columns, int64_t begin,
                  const Tensor& values) {
  const bool is_float32 = values.dtype() == DType::kFloat32;
  if (!is_float32 && values.dtype() != DType::kBFloat16) return;
  const int64_t count = values.numel();
  const int64_t found = is_float32 ? first_not_finite<uint32_t>(values.raw(), count, 0x7f800000u)
                                   : first_not_finite<uint16_t>(values.raw(), count, 0x7f80u);
  if (found == count) return;
  const float value = is_float32 ? values.data<float>()[found] : static_cast<float>(values.data<BFloat16>()[found]);
  throw InputError(fmt::format("{} is {} at {}, expected finite numbers", where, value,
                               describe_place(shape, columns, begin + found)));
}

void for_each_run(const TensorSlice& source, const TensorSlice& target,
                  const std::function<void(int64_t, int64_t, int64_t)>& visit) {
  if (source.columns == target.columns) {
    const int64_t first = std::max(source.begin, target.begin), last = std::min(source.end, target.end);
    if (first < last) visit(first - source.begin, first - target.begin, last - first);
    return;
  }
  if (source.begin == source.end || target.begin == target.end) return;
  if (std::max(source.columns.begin, target.columns.begin) >= std::min(source.columns.end, target.columns.end)) return;
  const int64_t first_row = std::max(source.begin / width(source), target.begin / width(target));
  const int64_t last_row = std::min((source.end - 1) / width(source), (target.end - 1) / width(target));
  for (int64_t row = first_row; row <= last_row; ++row) {
    const ColumnRange from = columns_of_row(source, row), to = columns_of_row(target, row);
    const int64_t first = std::max(from.begin, to.begin), last = std::min(from.end, to.end);
    if (first < last) visit(element(source, row, first), element(target, row, first), last - first);
  }
}

}  // namespace octavo

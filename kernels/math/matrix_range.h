// Maps the elements of a shard of a matrix to their indices in the whole matrix. A shard is a contiguous range of a
// block, and a block has some columns of the matrix. Element i of the range is element begin + i of the block. The
// block has rows of `columns` elements, which are `row_stride` elements apart in the matrix:
//
//   index(i) = first_index + (begin + i) / columns * row_stride + (begin + i) % columns
//
// If columns and row_stride are equal, all elements count as one row. If the result of an op for an element depends on
// this index alone, it is equal for every division of the matrix into shards.
#pragma once

#include <algorithm>
#include <cstdint>

namespace octavo {

struct MatrixRange {
  int64_t first_index = 0;  // Index of the block's first element.
  int64_t begin = 0;
  int64_t columns = 1;
  int64_t row_stride = 1;

  constexpr bool is_one_row() const { return columns == row_stride; }

  // Computes the indices of elements i to i + M - 1.
  template <int M>
  constexpr void indices(int64_t i, uint64_t (&out)[M]) const {
    const int64_t row = is_one_row() ? 0 : (begin + i) / columns;
    int64_t column = begin + i - row * columns;
    int64_t row_index = first_index + row * row_stride;
    for (int j = 0; j < M; ++j) {
      out[j] = static_cast<uint64_t>(row_index + column);
      if (++column == columns && !is_one_row()) {
        column = 0;
        row_index += row_stride;
      }
    }
  }
  constexpr uint64_t index(int64_t i) const {
    uint64_t out[1] = {};
    indices(i, out);
    return out[0];
  }
};

// Throws if the rows overlap or an index would be negative.
void expect_range(const MatrixRange& range, const char* op);

namespace cpu {

// Calls f(i, end, index(i)) for each range of the elements from `from` to `to` whose indices are consecutive.
template <typename F>
void for_each_row(const MatrixRange& range, int64_t from, int64_t to, F&& f) {
  for (int64_t i = from, end; i < to; i = end) {
    const int64_t row = (range.begin + i) / range.columns;
    end = range.is_one_row() ? to : std::min(to, (row + 1) * range.columns - range.begin);
    f(i, end, range.index(i));
  }
}

}  // namespace cpu

}  // namespace octavo

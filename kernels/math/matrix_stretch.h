// Where the elements of a stretch of a part of a matrix lie in the whole of it. Element i of the stretch is element
// begin + i of the part, whose rows of `columns` elements lie `row_stride` apart in the matrix,
//
//   index(i) = first_index + (begin + i) / columns * row_stride + (begin + i) % columns
//
// (equal ones: all in one row). What is a function of the index is the same however the matrix is divided.
#pragma once

#include <algorithm>
#include <cstdint>

namespace octavo {

struct MatrixStretch {
  int64_t first_index = 0;  // of the part's first element
  int64_t begin = 0;
  int64_t columns = 1;
  int64_t row_stride = 1;

  constexpr bool is_one_row() const { return columns == row_stride; }

  // Those of elements i to i + M - 1.
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

// Refuses rows that overlap, and places before the first.
void expect_stretch(const MatrixStretch& stretch, const char* op);

namespace cpu {

// Calls f(i, end, index(i)) for each stretch of the elements `from` to `to` whose indices follow each other.
template <typename F>
void for_each_row(const MatrixStretch& stretch, int64_t from, int64_t to, F&& f) {
  for (int64_t i = from, end; i < to; i = end) {
    const int64_t row = (stretch.begin + i) / stretch.columns;
    end = stretch.is_one_row() ? to : std::min(to, (row + 1) * stretch.columns - stretch.begin);
    f(i, end, stretch.index(i));
  }
}

}  // namespace cpu

}  // namespace octavo

// What a tensor-parallel rank holds of the weight of a row-parallel linear: some columns of all rows.
#pragma once

#include <cstdint>

namespace octavo {

// Columns [begin, end) of a 2-dimensional tensor; none (0, 0): all of them, of a tensor of any dimensions.
struct ColumnRange {
  int64_t begin = 0;
  int64_t end = 0;

  bool none() const { return begin == 0 && end == 0; }
  bool operator==(const ColumnRange& other) const = default;
};

}  // namespace octavo

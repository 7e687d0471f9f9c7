// The part of the weight of a row-parallel linear that a tensor-parallel rank holds: some columns of all rows.
#pragma once

#include <cstdint>

namespace octavo {

// Columns [begin, end) of a tensor of two dimensions. The range (0, 0) means a whole tensor of any dimensions.
struct ColumnRange {
  int64_t begin = 0;
  int64_t end = 0;

  bool none() const { return begin == 0 && end == 0; }
  bool operator==(const ColumnRange& other) const = default;
};

}  // namespace octavo

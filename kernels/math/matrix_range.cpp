#include "kernels/math/matrix_range.h"

#include "core/error.h"

namespace octavo {

void expect_range(const MatrixRange& range, const char* op) {
  CHECK(range.begin >= 0 && range.first_index >= 0 && 1 <= range.columns && range.columns <= range.row_stride,
        "{}: begin is {} in rows of {} elements that are {} apart, from index {} on; expected no overlap and no "
        "negative index",
        op, range.begin, range.columns, range.row_stride, range.first_index);
}

}  // namespace octavo

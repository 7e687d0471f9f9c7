#include "kernels/math/matrix_stretch.h"

#include "core/error.h"

namespace octavo {

void expect_stretch(const MatrixStretch& stretch, const char* op) {
  CHECK(stretch.begin >= 0 && stretch.first_index >= 0 && 1 <= stretch.columns && stretch.columns <= stretch.row_stride,
        "{}: begin is {} in rows of {} elements that are {} apart, from index {} on; expected no overlap and no "
        "negative index",
        op, stretch.begin, stretch.columns, stretch.row_stride, stretch.first_index);
}

}  // namespace octavo

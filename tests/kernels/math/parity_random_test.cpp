// Random numbers on the GPU equal those on the CPU bit for bit, wherever a slice starts and ends.
#include "core/error.h"
#include "kernels/math/random_normal.h"
#include "tests/kernels/parity.h"

namespace octavo::parity_random_test {
namespace {

TEST_F(ParityTest, RandomNormal) {
  for (const int64_t n : {1, 2, 3, 4, 5, 255, 1009, 4096, 70001, 5'000'011}) {
    for (const int64_t offset : {0, 1, 2, 3, 5}) {
      for (const int64_t begin : {int64_t{0}, int64_t{13}, (int64_t{1} << 31) - 2, (int64_t{1} << 33) + 1}) {
        for (const int64_t columns : {97, 128, 1000}) {
          Twin out(DType::kFloat32, {n}, offset);
          poison(out);
          on_both([&](Stream& s) {
            random_normal(
                {.out = out.on(s),
                 .key = 0x9876543210fedcbaull + static_cast<uint64_t>(n),
                 .mean = 0.25f,
                 .deviation = 0.02f,
                 .range = {.first_index = 3 * columns + 1, .begin = begin, .columns = columns, .row_stride = 1000}},
                s);
          });
          SCOPED_TRACE(fmt::format("{} elements at {}, from {}, {} columns", n, offset, begin, columns));
          expect_equal_bytes(out, "random_normal");
        }
      }
    }
  }
}

}  // namespace
}  // namespace octavo::parity_random_test

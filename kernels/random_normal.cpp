#include "kernels/random_normal.h"

#include <algorithm>
#include <cmath>

#include "build_config.h"
#include "core/error.h"
#include "core/profiler.h"
#include "kernels/random_numbers.h"
#include "kernels/rounded_math.h"

namespace octavo {

namespace cuda {
void random_normal(const RandomNormal& args, Stream& stream);
}  // namespace cuda

namespace cpu {

// The elements of one row.
void fill_row(const RandomNormal& args, float* out, int64_t count, int64_t first_index) {
  const auto first = static_cast<uint64_t>(first_index);
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t bits = random_bits(args.key, first + static_cast<uint64_t>(i));
    out[i] = RoundedMath::fma(args.deviation, standard_normal<RoundedMath>(bits), args.mean);
  }
}

void random_normal(const RandomNormal& args) {
  constexpr int64_t kBlock = 4096;
  const int64_t n = args.out.numel();
  const bool one_row = args.columns == args.row_stride;
  float* out = args.out.data<float>();
#pragma omp parallel for
  for (int64_t block = 0; block < n; block += kBlock) {
    const int64_t end = std::min(block + kBlock, n);
    for (int64_t i = block, next; i < end; i = next) {
      const int64_t place = args.begin + i;
      const int64_t row = place / args.columns;
      next = one_row ? end : std::min(end, (row + 1) * args.columns - args.begin);
      fill_row(args, out + i, next - i, args.first_index + row * args.row_stride + place % args.columns);
    }
  }
}

}  // namespace cpu

void random_normal(const RandomNormal& args, Stream& stream) {
  expect_tensor(args.out, "random_normal out", DType::kFloat32, {args.out.numel()});
  CHECK(args.begin >= 0 && args.first_index >= 0 && 1 <= args.columns && args.columns <= args.row_stride,
        "random_normal: elements from {} of rows of {} that lie {} apart, from index {}", args.begin, args.columns,
        args.row_stride, args.first_index);
  const OpTimer timer(stream, "random_normal", 0, static_cast<double>(args.out.bytes()));
  if (timer.planned()) return;
  if constexpr (kHasCuda) {
    if (stream.is_cuda()) return cuda::random_normal(args, stream);
  }
  cpu::random_normal(args);
}

}  // namespace octavo

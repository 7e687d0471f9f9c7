#include "kernels/math/random_normal.h"

#include <algorithm>

#include "core/error.h"
#include "core/profiler.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/math/math_cuda.h"
#include "kernels/math/random_numbers.h"
#include "kernels/math/rounded_math.h"

namespace octavo {

namespace cpu {

// Fills `count` elements of one row.
void fill_row(const RandomNormal& args, float* out, int64_t count, uint64_t first) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t bits = random_bits(args.key, first + static_cast<uint64_t>(i));
    out[i] = RoundedMath::fma(args.deviation, standard_normal<RoundedMath>(bits), args.mean);
  }
}

void random_normal(const RandomNormal& args) {
  constexpr int64_t kBlock = 4096;
  const int64_t n = args.out.numel();
  float* out = args.out.data<float>();
#pragma omp parallel for
  for (int64_t block = 0; block < n; block += kBlock) {
    const int64_t end = std::min(block + kBlock, n);
    for_each_row(args.range, block, end,
                 [&](int64_t i, int64_t next, uint64_t first) { fill_row(args, out + i, next - i, first); });
  }
}

}  // namespace cpu

void random_normal(const RandomNormal& args, Stream& stream) {
  expect_tensor(args.out, "random_normal out", DType::kFloat32, {args.out.numel()});
  expect_range(args.range, "random_normal");
  const OpTimer timer(stream, "random_normal", args.out.bytes());
  if (ran_elsewhere<cuda::random_normal>(args, stream)) return;
  cpu::random_normal(args);
}

}  // namespace octavo

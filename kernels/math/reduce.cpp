#include "kernels/math/reduce.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/profiler.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/math/cpu_math.h"
#include "kernels/math/math_cuda.h"

namespace octavo {

namespace cpu {

// Sums term(x) over fixed slices and then over the slices in order, so that the order of additions does not depend on
// the number of threads.
template <typename T, typename Term>
double sliced_sum(const Tensor& x, Term term) {
  constexpr int64_t kSlices = 256;
  constexpr int64_t kBlock = 1024;  // Sums are float32 within a block and float64 across blocks.
  const T* values = x.data<T>();
  const int64_t n = x.numel();
  std::array<double, kSlices> partial{};
#pragma omp parallel for
  for (int64_t s = 0; s < kSlices; ++s) {
    const int64_t end = n * (s + 1) / kSlices;
    for (int64_t begin = n * s / kSlices; begin < end; begin += kBlock) {
      float block = 0;
#pragma omp simd reduction(+ : block)
      for (int64_t i = begin; i < std::min(begin + kBlock, end); ++i) block += term(static_cast<float>(values[i]));
      partial[static_cast<size_t>(s)] += static_cast<double>(block);
    }
  }
  double total = 0;
  for (const double p : partial) total += p;
  return total;
}

}  // namespace cpu

void sum_of_squares(const SumOfSquares& args, Stream& stream) {
  expect_tensor(args.out, "sum_of_squares out", DType::kFloat32, {1});
  expect_tensor(args.x, "sum_of_squares x", args.x.dtype(), {args.x.numel()});
  const OpTimer timer(stream, "sum_of_squares", args.x.bytes());
  if (ran_elsewhere<cuda::sum_of_squares>(args, stream)) return;
  cpu::with_compute_dtype(args.x.dtype(), [&]<typename T>() {
    args.out.data<float>()[0] += static_cast<float>(cpu::sliced_sum<T>(args.x, [](float v) { return v * v; }));
  });
}

void sum(const Sum& args, Stream& stream) {
  expect_tensor(args.out, "sum out", DType::kFloat32, {1});
  expect_tensor(args.x, "sum x", DType::kFloat32, {args.x.numel()});
  const OpTimer timer(stream, "sum", args.x.bytes());
  if (ran_elsewhere<cuda::sum>(args, stream)) return;
  args.out.data<float>()[0] += static_cast<float>(cpu::sliced_sum<float>(args.x, [](float v) { return v; }));
}

int64_t reduce_workspace_bytes(const Stream& stream) {
  if (!stream.is_cuda()) return 0;
  return stream.multiprocessors() * cuda::kReduceBlocksPerMultiprocessor * static_cast<int64_t>(sizeof(double));
}

}  // namespace octavo

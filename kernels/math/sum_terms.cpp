#include "kernels/math/sum_terms.h"

#include "core/error.h"
#include "core/profiler.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/math/cpu_math.h"
#include "kernels/math/math_cuda.h"

namespace octavo {

namespace cpu {

template <typename T, typename Out>
void sum_terms(const SumTerms& args) {
  const int64_t n = args.out.numel();
  const int64_t count = args.terms.numel();
  const T* terms = args.terms.data<T>();
  Out* out = args.out.data<Out>();
#pragma omp parallel for simd
  for (int64_t i = 0; i < n; ++i) {
    float sum = static_cast<float>(terms[i]);
    for (int64_t j = i + n; j < count; j += n) sum += static_cast<float>(terms[j]);
    out[i] = Out(args.accumulate ? static_cast<float>(out[i]) + sum : sum);
  }
}

}  // namespace cpu

void sum_terms(const SumTerms& args, Stream& stream) {
  const int64_t n = args.out.numel();
  const bool is_float = args.out.dtype() == DType::kFloat32;
  expect_tensor(args.out, "sum_terms out", is_float ? DType::kFloat32 : args.terms.dtype(), {n});
  expect_tensor(args.terms, "sum_terms terms", args.terms.dtype(), {args.terms.numel()});
  CHECK(n == 0 || (args.terms.numel() > 0 && args.terms.numel() % n == 0),
        "sum_terms: the terms are {}, expected a multiple of the elements of {}", args.terms.describe(),
        args.out.describe());
  const OpTimer timer(stream, "sum_terms", args.terms.bytes() + (args.accumulate ? 2 : 1) * args.out.bytes());
  if (ran_elsewhere<cuda::sum_terms>(args, stream)) return;
  cpu::with_compute_dtype(args.terms.dtype(), [&]<typename T>() {
    is_float ? cpu::sum_terms<T, float>(args) : cpu::sum_terms<T, T>(args);
  });
}

}  // namespace octavo

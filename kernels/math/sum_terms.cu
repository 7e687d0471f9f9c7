#include "kernels/cuda/flat.cuh"
#include "kernels/math/sum_terms.h"

namespace octavo::cuda {

namespace {

template <typename T, typename Out>
struct SumTermsOp {
  Out* out;
  const T* terms;
  int64_t n;
  int64_t count;  // Number of elements of all terms.
  bool accumulate;

  template <int M>
  __device__ void operator()(int64_t i) const {
    float sum[M];
    float values[M];
    load_floats(terms + i, sum);
    for (int64_t t = i + n; t < count; t += n) {
      load_floats(terms + t, values);
#pragma unroll
      for (int j = 0; j < M; ++j) sum[j] += values[j];
    }
    if (accumulate) {
      load_floats(out + i, values);
#pragma unroll
      for (int j = 0; j < M; ++j) sum[j] += values[j];
    }
    store_floats(out + i, sum);
  }
};

}  // namespace

void sum_terms(const SumTerms& args, Stream& stream) {
  const int64_t n = args.out.numel();
  if (n == 0) return;
  with_element(args.terms.dtype(), [&]<typename T>() {
    const auto launch_with = [&]<typename Out>(Out* out) {
      const SumTermsOp<T, Out> op{out, pointer<const T>(args.terms), n, args.terms.numel(), args.accumulate};
      // Vector accesses require that all terms have the alignment of the first. Checking the second term suffices,
      // because the terms are equally spaced.
      const T* second = op.count > n ? op.terms + n : nullptr;
      launch_flat<8>("sum_terms", op, n, stream, op.out, op.terms, second);
    };
    if (args.out.dtype() == DType::kFloat32) return launch_with(pointer<float>(args.out));
    launch_with(pointer<T>(args.out));
  });
}

}  // namespace octavo::cuda

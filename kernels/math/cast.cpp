#include "kernels/math/cast.h"

#include "core/error.h"
#include "core/profiler.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/math/cpu_math.h"
#include "kernels/math/math_cuda.h"

namespace octavo {

namespace cpu {

template <typename Out, typename In>
void cast(const Cast& args) {
  const int64_t n = args.x.numel();
  const In* x = args.x.data<In>();
  Out* out = args.out.data<Out>();
#pragma omp parallel for simd
  for (int64_t i = 0; i < n; ++i) out[i] = Out(static_cast<float>(x[i]));
}

}  // namespace cpu

void cast(const Cast& args, Stream& stream) {
  expect_tensor(args.out, "cast out", args.out.dtype(), {args.x.numel()});
  expect_tensor(args.x, "cast x", args.x.dtype(), {args.x.numel()});
  const OpTimer timer(stream, "cast", args.x.bytes() + args.out.bytes());
  if (ran_elsewhere<cuda::cast>(args, stream)) return;
  cpu::with_compute_dtype(args.x.dtype(), [&]<typename In>() {
    cpu::with_compute_dtype(args.out.dtype(), [&]<typename Out>() { cpu::cast<Out, In>(args); });
  });
}

}  // namespace octavo

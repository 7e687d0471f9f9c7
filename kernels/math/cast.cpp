#include "kernels/math/cast.h"

#include "core/profiler.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/math/cpu_math.h"
#include "kernels/math/math_cuda.h"

namespace octavo {

void cast(const Cast& args, Stream& stream) {
  expect_tensor(args.out, "cast out", args.out.dtype(), {args.x.numel()});
  expect_tensor(args.x, "cast x", args.x.dtype(), {args.x.numel()});
  const OpTimer timer(stream, "cast", args.x.bytes() + args.out.bytes());
  if (ran_elsewhere<cuda::cast>(args, stream)) return;
  cpu::with_compute_dtype(args.x.dtype(), [&]<typename In>() {
    cpu::with_compute_dtype(args.out.dtype(), [&]<typename Out>() {
      cpu::convert(args.out.data<Out>(), args.x.data<In>(), args.x.numel());
    });
  });
}

}  // namespace octavo

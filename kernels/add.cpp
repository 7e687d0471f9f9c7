#include "kernels/add.h"

#include "build_config.h"
#include "core/error.h"
#include "core/profiler.h"
#include "kernels/cpu_math.h"

namespace octavo {

namespace cuda {
void add(const Add& args, Stream& stream);
}  // namespace cuda

namespace cpu {

template <typename T>
void add(const Add& args) {
  const int64_t n = args.x.numel();
  const T* x = args.x.data<T>();
  float* out = args.out.data<float>();
#pragma omp parallel for simd
  for (int64_t i = 0; i < n; ++i) out[i] += static_cast<float>(x[i]);
}

}  // namespace cpu

void add(const Add& args, Stream& stream) {
  expect_tensor(args.x, "add x", args.x.dtype(), {args.x.numel()});
  expect_tensor(args.out, "add out", DType::kFloat32, {args.x.numel()});
  const OpTimer timer(stream, "add", 0, static_cast<double>(args.x.bytes() + 2 * args.out.bytes()));
  if (timer.planned()) return;
  if constexpr (kHasCuda) {
    if (stream.is_cuda()) return cuda::add(args, stream);
  }
  cpu::with_compute_dtype(args.x.dtype(), [&]<typename T>() { cpu::add<T>(args); });
}

}  // namespace octavo

#include "kernels/optimizer/ema.h"

#include "core/error.h"
#include "core/profiler.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/optimizer/cpu_optimizer.h"
#include "kernels/optimizer/optimizer_cuda.h"

namespace octavo {

namespace cpu {

void ema(const Ema& args) {
  if (skips(args.skip)) return;
  const int64_t n = args.x.numel();
  const auto rate = static_cast<float>(1 - args.decay);
  const float* x = args.x.data<float>();
  float* ema = args.ema.data<float>();
#pragma omp parallel for simd
  for (int64_t i = 0; i < n; ++i) ema[i] += rate * (x[i] - ema[i]);
}

}  // namespace cpu

void ema(const Ema& args, Stream& stream) {
  const int64_t n = args.x.numel();
  expect_tensor(args.x, "ema x", DType::kFloat32, {n});
  expect_tensor(args.ema, "ema", DType::kFloat32, {n});
  if (args.skip.defined()) expect_tensor(args.skip, "ema skip", DType::kFloat32, {1});
  CHECK(args.decay >= 0 && args.decay <= 1, "ema: the decay is {}, expected 0 to 1", args.decay);
  const OpTimer timer(stream, "ema", 3 * args.x.bytes());
  if (ran_elsewhere<cuda::ema>(args, stream)) return;
  cpu::ema(args);
}

}  // namespace octavo

#include "kernels/optimizer/adamw.h"

#include "core/error.h"
#include "core/profiler.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/optimizer/adamw_float8.h"
#include "kernels/optimizer/cpu_optimizer.h"
#include "kernels/optimizer/optimizer_cuda.h"

namespace octavo {

namespace cpu {

template <typename Moment>
void adamw(const Adamw& args) {
  const AdamwOptions& o = args.options;
  const int64_t n = args.master.numel();
  const float clip = clip_factor(o.grad_clip, args.grad_sum_of_squares);
  const AdamwScales scales(o);
  if (skips(args.skip)) return update_amax<float>(args.amax, args.master);
  float* master = args.master.data<float>();
  const float* grad = args.grad.data<float>();
  Moment* exp_avg = args.exp_avg.data<Moment>();
  Moment* exp_avg_sq = args.exp_avg_sq.data<Moment>();
#pragma omp parallel for simd
  for (int64_t i = 0; i < n; ++i) {
    const float g = clip * grad[i];
    const float m = o.beta1 * static_cast<float>(exp_avg[i]) + (1 - o.beta1) * g;
    const float v = o.beta2 * static_cast<float>(exp_avg_sq[i]) + (1 - o.beta2) * g * g;
    exp_avg[i] = Moment(m);
    exp_avg_sq[i] = Moment(v);
    const float update = m * scales.m / (std::sqrt(v * scales.v) + o.eps) + o.weight_decay * master[i];
    master[i] -= o.lr * update;
  }
  cast_weights(args.master, args.amax, args.weight);
}

}  // namespace cpu

void adamw(const Adamw& args, Stream& stream) {
  const int64_t n = args.master.numel();
  expect_tensor(args.master, "adamw master", DType::kFloat32, {n});
  expect_tensor(args.grad, "adamw grad", DType::kFloat32, {n});
  expect_tensor(args.exp_avg, "adamw exp_avg", args.exp_avg.dtype(), {n});
  const bool codes = args.exp_avg.dtype() == DType::kFloat8E4M3;
  expect_tensor(args.exp_avg_sq, "adamw exp_avg_sq", codes ? DType::kBFloat16 : args.exp_avg.dtype(), {n});
  if (args.weight.defined()) expect_tensor(args.weight, "adamw weight", DType::kBFloat16, {n});
  if (args.amax.defined()) expect_tensor(args.amax, "adamw amax", DType::kFloat32, {1});
  if (args.options.grad_clip > 0) expect_tensor(args.grad_sum_of_squares, "adamw norm", DType::kFloat32, {1});
  if (args.skip.defined()) expect_tensor(args.skip, "adamw skip", DType::kFloat32, {1});
  expect_range(args.range, "adamw");
  CHECK(args.options.step >= 1, "adamw: steps count from 1, got {}", args.options.step);
  const int64_t moment_bytes = args.exp_avg.bytes() + args.exp_avg_sq.bytes();
  const int64_t weight_bytes = args.weight.defined() ? args.weight.bytes() : 0;
  const OpTimer timer(stream, "adamw", 3 * args.master.bytes() + 2 * moment_bytes + weight_bytes);
  if (ran_elsewhere<cuda::adamw>(args, stream)) return;
  if (codes) return cpu::adamw_float8(args);
  cpu::with_compute_dtype(args.exp_avg.dtype(), [&]<typename Moment>() { cpu::adamw<Moment>(args); });
}

}  // namespace octavo

#include "kernels/optimizer/adamw_float8.h"

#include <algorithm>

#include "core/dtype.h"
#include "core/error.h"
#include "kernels/math/rounded_math.h"
#include "kernels/optimizer/cpu_optimizer.h"

namespace octavo {

namespace cpu {

void adamw_float8(const Adamw& args) {
  const AdamwOptions& o = args.options;
  const int64_t n = args.master.numel();
  const float clip = clip_factor(o.grad_clip, args.grad_sum_of_squares);
  const AdamwScales scales(o);
  if (skips(args.skip)) return update_amax<float>(args.amax, args.master);
  float* master = args.master.data<float>();
  const float* grad = args.grad.data<float>();
  auto* exp_avg = static_cast<uint8_t*>(args.exp_avg.raw());
  auto* exp_avg_sq = static_cast<uint16_t*>(args.exp_avg_sq.raw());
  constexpr int64_t kBlock = 4096;
#pragma omp parallel for
  for (int64_t block = 0; block < n; block += kBlock) {
    const auto update_row = [&](int64_t from, int64_t to, uint64_t index) {
#pragma omp simd
      for (int64_t i = from; i < to; ++i) {
        const uint32_t random = moment_bits(args.random_key, index + static_cast<uint64_t>(i - from));
        adamw_with_codes<RoundedMath>(o, scales, clip * grad[i], random, master[i], exp_avg[i], exp_avg_sq[i]);
      }
    };
    for_each_row(args.range, block, std::min(block + kBlock, n), update_row);
  }
  cast_weights(args.master, args.amax, args.weight);
}

}  // namespace cpu

namespace {

float kept_root(float exp_avg_sq) { return cpu::RoundedMath::sqrt(static_cast<float>(BFloat16(exp_avg_sq))); }

void expect_moments(const Tensor& codes, const Tensor& exp_avg, const Tensor& exp_avg_sq) {
  expect_tensor(codes, "codes of the first moment", DType::kFloat8E4M3, {codes.numel()});
  expect_tensor(exp_avg, "exp_avg", exp_avg.dtype(), {codes.numel()});
  expect_tensor(exp_avg_sq, "exp_avg_sq", DType::kFloat32, {codes.numel()});
}

}  // namespace

void encode_first_moment(const Tensor& codes, const Tensor& exp_avg, const Tensor& exp_avg_sq) {
  expect_moments(codes, exp_avg, exp_avg_sq);
  const float* m = exp_avg.data<float>();
  const float* v = exp_avg_sq.data<float>();
  auto* out = codes.data<Float8E4M3>();
#pragma omp parallel for
  for (int64_t i = 0; i < codes.numel(); ++i) {
    out[i] = Float8E4M3(moment_ratio<cpu::RoundedMath>(m[i], kept_root(v[i])));
  }
}

void decode_first_moment(const Tensor& exp_avg, const Tensor& codes, const Tensor& exp_avg_sq) {
  expect_moments(codes, exp_avg, exp_avg_sq);
  const auto* from = static_cast<const uint8_t*>(codes.raw());
  const float* v = exp_avg_sq.data<float>();
  cpu::with_compute_dtype(exp_avg.dtype(), [&]<typename Moment>() {
    auto* out = exp_avg.data<Moment>();
#pragma omp parallel for
    for (int64_t i = 0; i < codes.numel(); ++i) out[i] = Moment(moment_of<cpu::RoundedMath>(from[i], kept_root(v[i])));
  });
}

}  // namespace octavo

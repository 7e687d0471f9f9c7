#include "kernels/fp8/fp8_stats.h"

#include <algorithm>

#include "core/error.h"
#include "core/profiler.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/fp8/fp8_cpu.h"
#include "kernels/fp8/fp8_cuda.h"
#include "kernels/math/cpu_math.h"

namespace octavo {

namespace {

void check_fp8_stats(const Fp8Stats& args) {
  const int64_t m = args.x.dim(0);
  const int64_t n = args.x.dim(1);
  const DType format = args.rows.data.dtype();
  CHECK(format == DType::kFloat8E4M3 || format == DType::kFloat8E5M2, "fp8_stats: rows are {}, expected float8",
        args.rows.data.describe());
  expect_tensor(args.sums, "fp8_stats sums", DType::kFloat32, {Fp8Sum::kCount});
  expect_tensor(args.maxima, "fp8_stats maxima", DType::kFloat32, {Fp8Maximum::kCount});
  expect_tensor(args.rows.data, "fp8_stats rows", format, {m, n});
  expect_tensor(args.rows.scale_inv, "fp8_stats scales", DType::kFloat32, {fp8_scale_count(args.rows.scaling, m, n)});
  if (traits(args.rows.scaling).takes_amax) expect_tensor(args.amax, "fp8_stats amax", DType::kFloat32, {1});
}

}  // namespace

namespace cpu {

template <typename T>
void fp8_stats(const Fp8Stats& args) {
  const int64_t m = args.x.dim(0);
  const int64_t n = args.x.dim(1);
  const T* x = args.x.data<T>();
  const auto* q = static_cast<const uint8_t*>(args.rows.data.raw());
  const Scaling scaling = args.rows.scaling;
  const DType format = args.rows.data.dtype();
  const uint32_t saturated_bits = fp8_saturated_bits(format);
  const float fp8_max = format == DType::kFloat8E4M3 ? Float8E4M3::max() : Float8E5M2::max();
  // The scale that the cast used. The inverse of scale_inv may differ from it by one rounding, which is harmless for a
  // tensor that is scaled by its own amax, because its elements are far from saturation.
  const bool has_amax = traits(scaling).takes_amax;
  const float tensor_scale = has_amax ? scale_of(args.amax.data<float>()[0], fp8_max) : 0.0f;
  int64_t non_zero = 0;
  int64_t saturated = 0;
  int64_t flushed = 0;
  uint32_t amax = 0;
  uint32_t scale_inv = 0;
  uint32_t scale = 0;
#pragma omp parallel for reduction(+ : non_zero, saturated, flushed) reduction(max : amax, scale_inv, scale)
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t i = 0; i < n; ++i) {
      const auto value = static_cast<float>(x[row * n + i]);
      const float inverse = args.rows.scale_inv.data<float>()[scale_index(scaling, m, n, row, i)];
      const float factor = has_amax ? tensor_scale : 1.0f / inverse;
      const uint32_t scaled = magnitude(value * factor);
      const bool counts = magnitude(value) != 0;
      non_zero += counts ? 1 : 0;
      saturated += scaled >= saturated_bits && scaled < 0x7f800000u ? 1 : 0;
      flushed += counts && (q[row * n + i] & 0x7f) == 0 ? 1 : 0;
      amax = std::max(amax, magnitude(value));
      scale_inv = std::max(scale_inv, magnitude(inverse));
      scale = std::max(scale, magnitude(factor));
    }
  }
  float* sums = args.sums.data<float>();
  sums[Fp8Sum::kElements] += static_cast<float>(m * n);
  sums[Fp8Sum::kNonZero] += static_cast<float>(non_zero);
  sums[Fp8Sum::kSaturated] += static_cast<float>(saturated);
  sums[Fp8Sum::kFlushed] += static_cast<float>(flushed);
  float* maxima = args.maxima.data<float>();
  update_amax(maxima[Fp8Maximum::kAmax], std::bit_cast<float>(amax));
  update_amax(maxima[Fp8Maximum::kScaleInv], std::bit_cast<float>(scale_inv));
  update_amax(maxima[Fp8Maximum::kScale], std::bit_cast<float>(scale));
}

}  // namespace cpu

void fp8_stats(const Fp8Stats& args, Stream& stream) {
  check_fp8_stats(args);
  const OpTimer timer(stream, "fp8_stats", args.x.bytes() + args.rows.data.bytes());
  if (ran_elsewhere<cuda::fp8_stats>(args, stream)) return;
  cpu::with_compute_dtype(args.x.dtype(), [&]<typename T>() { cpu::fp8_stats<T>(args); });
}

int64_t fp8_stats_workspace_bytes(const Stream& stream) {
  return stream.is_cuda() ? kFp8Counts * static_cast<int64_t>(sizeof(uint64_t)) : 0;
}

}  // namespace octavo

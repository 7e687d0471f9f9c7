#include "kernels/fp8/fp8_shard.h"

#include <algorithm>

#include "core/error.h"
#include "core/profiler.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/fp8/fp8_cpu.h"
#include "kernels/fp8/fp8_cuda.h"
#include "kernels/math/cpu_math.h"

namespace octavo {

namespace cpu {

template <typename Format, typename T>
void fp8_cast_piece(const Fp8CastPiece& args) {
  const int64_t n = args.x.numel();
  const float scale = scale_of(args.amax.data<float>()[0], Format::max());
  const T* x = args.x.data<T>();
  Format* out = args.out.data<Format>();
#pragma omp parallel for
  for (int64_t i = 0; i < n; ++i) out[i] = Format(static_cast<float>(x[i]) * scale);
}

void fp8_transpose(const Fp8Transpose& args) {
  constexpr int64_t kColumns = 64;  // rows of out that a thread writes together, so each cache line of x is read once
  const int64_t m = args.x.dim(0);
  const int64_t n = args.x.dim(1);
  const auto* x = static_cast<const uint8_t*>(args.x.raw());
  auto* out = static_cast<uint8_t*>(args.out.raw());
#pragma omp parallel for
  for (int64_t first = 0; first < n; first += kColumns) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = first; j < std::min(first + kColumns, n); ++j) out[j * m + i] = x[i * n + j];
    }
  }
}

template <typename Format>
void fp8_scale_inv(const Fp8ScaleInv& args) {
  const float* amax = args.amax.data<float>();
  float* scale_inv = args.scale_inv.data<float>();
  const int64_t stride = scale_inv_stride(args);
  for (int64_t i = 0; i < args.amax.numel(); ++i) scale_inv[i * stride] = 1.0f / scale_of(amax[i], Format::max());
}

}  // namespace cpu

void fp8_cast_piece(const Fp8CastPiece& args, Stream& stream) {
  CHECK(cpu::is_float8(args.out.dtype()), "fp8_cast_piece out is {}, expected a float8 tensor", args.out.describe());
  expect_tensor(args.x, "fp8_cast_piece x", args.x.dtype(), {args.x.numel()});
  expect_tensor(args.out, "fp8_cast_piece out", args.out.dtype(), {args.x.numel()});
  expect_tensor(args.amax, "fp8_cast_piece amax", DType::kFloat32, {1});
  const OpTimer timer(stream, "fp8_cast_piece", args.x.bytes() + args.out.bytes());
  if (ran_elsewhere<cuda::fp8_cast_piece>(args, stream)) return;
  cpu::with_compute_dtype(args.x.dtype(), [&]<typename T>() {
    cpu::with_float8_dtype(args.out.dtype(), [&]<typename Format>() { cpu::fp8_cast_piece<Format, T>(args); });
  });
}

void fp8_transpose(const Fp8Transpose& args, Stream& stream) {
  CHECK(cpu::is_float8(args.x.dtype()), "fp8_transpose x is {}, expected a float8 tensor", args.x.describe());
  expect_tensor(args.x, "fp8_transpose x", args.x.dtype(), {args.x.dim(0), args.x.dim(1)});
  expect_tensor(args.out, "fp8_transpose out", args.x.dtype(), {args.x.dim(1), args.x.dim(0)});
  const OpTimer timer(stream, "fp8_transpose", args.x.bytes() + args.out.bytes());
  if (ran_elsewhere<cuda::fp8_transpose>(args, stream)) return;
  cpu::fp8_transpose(args);
}

void fp8_scale_inv(const Fp8ScaleInv& args, Stream& stream) {
  CHECK(cpu::is_float8(args.format), "fp8_scale_inv: {} is not a float8 format", dtype_name(args.format));
  expect_tensor(args.amax, "fp8_scale_inv amax", DType::kFloat32, {args.amax.numel()});
  const int64_t count = args.amax.numel();
  if (args.scale_inv.ndim() == 2) {
    expect_tensor(args.scale_inv, "fp8_scale_inv scale_inv", DType::kFloat32, {count, args.scale_inv.dim(1)});
  } else {
    expect_tensor(args.scale_inv, "fp8_scale_inv scale_inv", DType::kFloat32, {count});
  }
  const OpTimer timer(stream, "fp8_scale_inv", args.amax.bytes() + args.scale_inv.bytes());
  if (ran_elsewhere<cuda::fp8_scale_inv>(args, stream)) return;
  cpu::with_float8_dtype(args.format, [&]<typename Format>() { cpu::fp8_scale_inv<Format>(args); });
}

}  // namespace octavo

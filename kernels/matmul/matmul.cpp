#include "kernels/matmul/matmul.h"

#include "build_config.h"
#include "core/error.h"
#include "core/profiler.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/math/cpu_math.h"
#include "kernels/matmul/matmul_cuda.h"
#include "kernels/matmul/matmul_workspace.h"
#include "kernels/matmul/sgemm.h"

namespace octavo {

namespace {

struct Sizes {
  int64_t m, n, k;
};

Sizes check_sizes(const Matmul& args) {
  const int64_t m = args.d.dim(0);
  const int64_t n = args.d.dim(1);
  const int64_t k = args.transpose_a ? args.a.dim(0) : args.a.dim(1);
  const DType compute = args.a.dtype();
  expect_tensor(args.a, "matmul a", compute, {args.transpose_a ? k : m, args.transpose_a ? m : k});
  expect_tensor(args.b, "matmul b", compute, {args.transpose_b ? n : k, args.transpose_b ? k : n});
  CHECK(args.d.dtype() == compute || args.d.dtype() == DType::kFloat32, "matmul: d is {}, a is {}", args.d.describe(),
        args.a.describe());
  return {m, n, k};
}

}  // namespace

namespace cpu {

void matmul_float32(const Matmul& args, const Sizes& s, float* d, const float* a, const float* b) {
  sgemm({.m = s.m,
         .n = s.n,
         .k = s.k,
         .transpose_a = args.transpose_a,
         .transpose_b = args.transpose_b,
         .accumulate = args.accumulate,
         .lda = args.transpose_a ? s.m : s.k,
         .ldb = args.transpose_b ? s.k : s.n,
         .ldd = s.n},
        d, a, b);
}

void matmul_bfloat16(const Matmul& args, const Sizes& s, Stream& stream) {
  float* a = static_cast<float*>(stream.workspace(matmul_workspace_bytes(s.m, s.n, s.k, DType::kBFloat16, stream)));
  float* b = a + s.m * s.k;
  float* result = b + s.k * s.n;
  convert(a, args.a.data<BFloat16>(), args.a.numel());
  convert(b, args.b.data<BFloat16>(), args.b.numel());
  if (args.d.dtype() == DType::kFloat32) return matmul_float32(args, s, args.d.data<float>(), a, b);
  if (args.accumulate) convert(result, args.d.data<BFloat16>(), args.d.numel());
  matmul_float32(args, s, result, a, b);
  convert(args.d.data<BFloat16>(), result, args.d.numel());
}

}  // namespace cpu

void matmul(const Matmul& args, Stream& stream) {
  const Sizes s = check_sizes(args);
  const double flops = 2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
  const double bytes = static_cast<double>(args.a.bytes() + args.b.bytes() + args.d.bytes());
  const OpTimer timer(stream, {.name = args.name,
                               .flops = flops,
                               .bytes = bytes,
                               .bound = OpBound::kMatmul,
                               .m = s.m,
                               .n = s.n,
                               .k = s.k,
                               .precision = dtype_name(args.a.dtype())});
  if (ran_elsewhere<cuda::matmul>(args, stream)) return;
  if (args.a.dtype() == DType::kBFloat16) return cpu::matmul_bfloat16(args, s, stream);
  cpu::matmul_float32(args, s, args.d.data<float>(), args.a.data<float>(), args.b.data<float>());
}

int64_t matmul_workspace_bytes(int64_t m, int64_t n, int64_t k, DType dtype, const Stream& stream) {
  if (stream.is_cuda()) return kMatmulWorkspaceBytes;
  return dtype == DType::kBFloat16 ? (m * k + k * n + m * n) * dtype_bytes(DType::kFloat32) : 0;
}

std::string cublaslt_version() {
  if constexpr (kHasCuda) return cuda::cublaslt_version();
  return "";
}

}  // namespace octavo

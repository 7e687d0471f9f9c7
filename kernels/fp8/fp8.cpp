#include "kernels/fp8/fp8.h"

#include <algorithm>

#include "core/error.h"
#include "core/profiler.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/fp8/fp8_cast.h"
#include "kernels/fp8/fp8_cpu.h"
#include "kernels/fp8/fp8_cuda.h"
#include "kernels/math/cpu_math.h"
#include "kernels/matmul/matmul_workspace.h"
#include "kernels/matmul/sgemm.h"

namespace octavo {

namespace {

void check_operand(const Fp8Operand& operand, const std::string& name, int64_t rows, int64_t k) {
  CHECK(cpu::is_float8(operand.data.dtype()), "{} is {}, expected a float8 tensor", name, operand.data.describe());
  expect_tensor(operand.data, name.c_str(), operand.data.dtype(), {rows, k});
  expect_tensor(operand.scale_inv, name.c_str(), DType::kFloat32, {fp8_scale_count(operand.scaling, rows, k)});
}

void check_operands(const Fp8Cast& cast, const std::string& op, int64_t m, int64_t n) {
  const Fp8Operand& rows = cast.rows;
  const Fp8Operand& columns = cast.columns;
  CHECK(cast.defined(), "{}: neither rows nor columns are wanted", op);
  if (rows.defined()) check_operand(rows, op + " rows", m, n);
  if (columns.defined()) check_operand(columns, op + " columns", n, m);
  if (rows.defined() && columns.defined()) {
    CHECK(rows.data.dtype() == columns.data.dtype() && rows.scaling == columns.scaling,
          "{}: rows are {}, columns {}, expected one format and scaling", op, rows.data.describe(),
          columns.data.describe());
  }
}

void check_amax(const Fp8Cast& cast, const std::string& op) {
  if (traits(cast.scaling()).takes_amax && !cast.bound)
    expect_tensor(cast.amax, (op + " amax").c_str(), DType::kFloat32, {1});
}

void check_fp8_matmul(const Fp8Matmul& args) {
  const int64_t m = args.a.data.dim(0);
  const int64_t n = args.b.data.dim(0);
  const int64_t k = args.a.data.dim(1);
  check_operand(args.a, "fp8_matmul a", m, k);
  check_operand(args.b, "fp8_matmul b", n, k);
  CHECK(args.d.dtype() == DType::kBFloat16 || args.d.dtype() == DType::kFloat32, "fp8_matmul: d is {}",
        args.d.describe());
  expect_tensor(args.d, "fp8_matmul d", args.d.dtype(), {m, n});
  CHECK(args.a.data.dtype() == DType::kFloat8E4M3 || args.b.data.dtype() == DType::kFloat8E4M3,
        "fp8_matmul: both operands are float8_e5m2, one must be float8_e4m3");
  const Scaling a = args.a.scaling;
  const Scaling b = args.b.scaling;
  CHECK(traits(a).scales_first && (a == b || (traits(a).blockwise && traits(b).blockwise)),
        "fp8_matmul: no matmul of scalings {} and {}", traits(a).name, traits(b).name);
  CHECK(k % 16 == 0 && n % 16 == 0, "fp8_matmul: n {} and k {} must be multiples of 16", n, k);
}

int64_t cast_bytes(const Fp8Cast& cast) {
  return (cast.rows.defined() ? cast.rows.data.bytes() : 0) + (cast.columns.defined() ? cast.columns.data.bytes() : 0);
}

}  // namespace

void check_cast(const Fp8Cast& cast, CastOf what, const char* op, const Tensor& result, const Stream& stream) {
  if (!cast.defined()) return;
  CHECK(what == CastOf::kGradient || cast.format() == DType::kFloat8E4M3, "{} cast: to {}, expected {}", op,
        dtype_name(cast.format()), dtype_name(DType::kFloat8E4M3));
  CHECK(!stream.is_cuda() || result.dtype() == DType::kBFloat16, "{} cast: of {} on a GPU, expected bfloat16", op,
        dtype_name(result.dtype()));
  check_operands(cast, fmt::format("{} cast", op), result.dim(0), result.dim(1));
  check_amax(cast, fmt::format("{} cast", op));
  CHECK(traits(cast.scaling()).casts_results, "{} cast: a scale of scaling {} is known only after the result", op,
        traits(cast.scaling()).name);
}

double result_bytes(const Fp8Cast& cast, const Tensor& result) {
  return static_cast<double>(cast.defined() ? cast_bytes(cast) : result.bytes());
}

namespace cpu {

// The elements of an operand before they are cast. With `transposed`, row r of the operand is column r of x.
template <typename T>
struct OperandSource {
  const T* x;
  int64_t row_stride;
  int64_t stride;
  OperandSource(const Fp8Operand& operand, const Tensor& tensor, bool transposed)
      : x(tensor.data<T>()),
        row_stride(transposed ? 1 : operand.data.dim(1)),
        stride(transposed ? operand.data.dim(0) : 1) {}
  float at(int64_t row, int64_t i) const { return static_cast<float>(x[row * row_stride + i * stride]); }
};

// Sets scale_inv to the amaxes of the elements that share a scale. Each thread takes blocks of 128 rows, and no two
// blocks share a scale, because this function does not measure the amax of kTensor.
template <typename T>
void measure_operand(const Fp8Operand& operand, const OperandSource<T>& source) {
  const int64_t rows = operand.data.dim(0);
  const int64_t k = operand.data.dim(1);
  float* amaxes = operand.scale_inv.data<float>();
  std::fill_n(amaxes, operand.scale_inv.numel(), 0.0f);
#pragma omp parallel for
  for (int64_t first = 0; first < rows; first += kScaleBlock) {
    for (int64_t row = first; row < std::min(first + kScaleBlock, rows); ++row) {
      for (int64_t i = 0; i < k; ++i) {
        update_amax(amaxes[scale_index(operand.scaling, rows, k, row, i)], source.at(row, i));
      }
    }
  }
}

// Casts the elements. scale_inv holds the amaxes before the call, the scales during it and their inverses after it.
template <typename Format, typename T>
void cast_operand(const Fp8Operand& operand, const OperandSource<T>& source) {
  const int64_t rows = operand.data.dim(0);
  const int64_t k = operand.data.dim(1);
  Format* out = operand.data.data<Format>();
  float* scales = operand.scale_inv.data<float>();
  const int64_t count = operand.scale_inv.numel();
  for (int64_t s = 0; s < count; ++s) scales[s] = scale_of(scales[s], Format::max());
#pragma omp parallel for
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < k; ++i) {
      out[row * k + i] = Format(source.at(row, i) * scales[scale_index(operand.scaling, rows, k, row, i)]);
    }
  }
  for (int64_t s = 0; s < count; ++s) scales[s] = 1.0f / scales[s];
}

// Runs the passes args.passes of quantize() for one FP8 operand: the rows of x, or the columns of x if `transposed`.
void quantize_operand(const Fp8Operand& operand, const Quantize& args, bool transposed) {
  if (!operand.defined()) return;
  with_compute_dtype(args.x.dtype(), [&]<typename T>() {
    const OperandSource<T> source(operand, args.x, transposed);
    if (traits(operand.scaling).takes_amax) {
      operand.scale_inv.data<float>()[0] = args.cast.bound ? *args.cast.bound : args.cast.amax.data<float>()[0];
    } else if (args.passes != QuantizePasses::kCast) {
      measure_operand(operand, source);
    }
    if (args.passes == QuantizePasses::kMeasure) return;
    with_float8_dtype(operand.data.dtype(), [&]<typename Format>() { cast_operand<Format>(operand, source); });
  });
}

void quantize(const Quantize& args) {
  quantize_operand(args.cast.rows, args, false);
  quantize_operand(args.cast.columns, args, true);
  with_compute_dtype(args.x.dtype(), [&]<typename T>() { update_amax<T>(args.amax_out, args.x); });
}

void cast_result(const Fp8Cast& cast, const Tensor& result) {
  if (cast.defined()) quantize({.cast = cast, .x = result});
}

void dequantize(float* out, const Fp8Operand& operand) {
  const int64_t rows = operand.data.dim(0);
  const int64_t k = operand.data.dim(1);
  const float* scale_inv = operand.scale_inv.data<float>();
  with_float8_dtype(operand.data.dtype(), [&]<typename Format>() {
    const Format* data = operand.data.data<Format>();
#pragma omp parallel for
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < k; ++i) {
        const int64_t scale = scale_index(operand.scaling, rows, k, row, i);
        out[row * k + i] = static_cast<float>(data[row * k + i]) * scale_inv[scale];
      }
    }
  });
}

void fp8_matmul(const Fp8Matmul& args, Stream& stream) {
  const int64_t m = args.d.dim(0);
  const int64_t n = args.d.dim(1);
  const int64_t k = args.a.data.dim(1);
  float* a = static_cast<float*>(stream.workspace(fp8_matmul_workspace_bytes(m, n, k, stream)));
  float* b = a + m * k;
  dequantize(a, args.a);
  dequantize(b, args.b);
  const bool direct = args.d.dtype() == DType::kFloat32;
  float* d = direct ? args.d.data<float>() : b + n * k;
  if (!direct && args.accumulate) convert(d, args.d.data<BFloat16>(), m * n);
  sgemm({.m = m, .n = n, .k = k, .transpose_b = true, .accumulate = args.accumulate, .lda = k, .ldb = k, .ldd = n}, d,
        a, b);
  if (!direct) convert(args.d.data<BFloat16>(), d, m * n);
}

}  // namespace cpu

void amax(const Amax& args, Stream& stream) {
  expect_tensor(args.out, "amax out", DType::kFloat32, {1});
  if (args.factor.defined()) expect_tensor(args.factor, "amax factor", DType::kFloat32, {1});
  const OpTimer timer(stream, "amax", args.x.bytes());
  if (ran_elsewhere<cuda::amax>(args, stream)) return;
  const float factor = args.factor.defined() ? args.factor.data<float>()[0] : 1.0f;
  cpu::with_compute_dtype(args.x.dtype(), [&]<typename T>() {
    cpu::update_amax(args.out.data<float>()[0], factor * cpu::tensor_amax<T>(args.x));
  });
}

void quantize(const Quantize& args, Stream& stream) {
  const Fp8Cast& cast = args.cast;
  const bool measures_only = args.passes == QuantizePasses::kMeasure;
  const char* name = measures_only ? "row_amaxes" : "quantize";
  check_operands(cast, name, args.x.dim(0), args.x.dim(1));
  const ScalingTraits& scaling = traits(cast.scaling());
  CHECK(args.passes == QuantizePasses::kAll || scaling.measures_apart,
        "{}: one of two passes with scaling {}, which has one pass", name, scaling.name);
  CHECK(!cast.bound || (scaling.takes_amax && !cast.amax.defined()),
        "quantize: a bound beside an amax, or with scaling {}", scaling.name);
  check_amax(cast, "quantize");
  CHECK(!measures_only || !args.amax_out.defined(), "row_amaxes: amax_out is the result of the casting pass");
  if (args.amax_out.defined()) expect_tensor(args.amax_out, "quantize amax_out", DType::kFloat32, {1});
  const int64_t reads = scaling.measures_apart && args.passes == QuantizePasses::kAll ? 2 : 1;
  const int64_t written = measures_only ? 0 : cast_bytes(cast);
  const OpTimer timer(stream, name, reads * args.x.bytes() + written);
  if (ran_elsewhere<cuda::quantize>(args, stream)) return;
  cpu::quantize(args);
}

void fp8_matmul(const Fp8Matmul& args, Stream& stream) {
  check_fp8_matmul(args);
  const int64_t m = args.d.dim(0);
  const int64_t n = args.d.dim(1);
  const int64_t k = args.a.data.dim(1);
  const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  const double bytes = static_cast<double>(args.a.data.bytes() + args.b.data.bytes() + args.d.bytes());
  const OpTimer timer(stream, {.name = args.name,
                               .flops = flops,
                               .bytes = bytes,
                               .bound = OpBound::kFp8Matmul,
                               .m = m,
                               .n = n,
                               .k = k,
                               .precision = traits(args.a.scaling).matmul,
                               .fast_accumulation = args.fast_accumulation});
  if (ran_elsewhere<cuda::fp8_matmul>(args, stream)) return;
  cpu::fp8_matmul(args, stream);
}

int64_t fp8_matmul_workspace_bytes(int64_t m, int64_t n, int64_t k, const Stream& stream) {
  if (stream.is_cuda()) return kMatmulWorkspaceBytes;
  return (m * k + n * k + m * n) * dtype_bytes(DType::kFloat32);
}

}  // namespace octavo

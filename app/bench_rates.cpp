#include "app/bench_rates.h"

#include <algorithm>
#include <functional>
#include <random>

#include "app/bench.h"
#include "kernels/core/arena.h"
#include "kernels/matmul.h"

namespace octavo {

namespace {

struct RateSizes {
  explicit RateSizes(bool is_cuda)
      : n(is_cuda ? 8192 : 1024), copy_bytes(is_cuda ? int64_t{1} << 30 : int64_t{1} << 27), runs(is_cuda ? 100 : 10) {}

  int64_t n;           // of a product [n, n] x [n, n]
  int64_t copy_bytes;  // beyond any cache
  int64_t runs;
};

std::pair<Scaling, Scaling> operand_scalings(LinearPrecision recipe) {
  switch (recipe) {
    case LinearPrecision::kFp8Rowwise:
      return {Scaling::kRow, Scaling::kRow};
    case LinearPrecision::kFp8Blockwise:
      return {Scaling::kBlock1x128, Scaling::kBlock128x128};
    default:
      return {Scaling::kTensor, Scaling::kTensor};
  }
}

struct RateBuffers {
  RateBuffers(const PrecisionConfig& precision, const RateSizes& sizes, Stream& stream, Arena& arena) {
    const int64_t n = sizes.n;
    a = arena.allocate("a", precision.compute, {n, n});
    b = arena.allocate("b", precision.compute, {n, n});
    d = arena.allocate("d", precision.compute, {n, n});
    int64_t workspace_bytes = matmul_workspace_bytes(n, n, n, precision.compute, stream);
    if (is_fp8(precision.linear)) {
      const auto [a_scaling, b_scaling] = operand_scalings(precision.linear);
      fp8_a = operand(a_scaling, n, arena);
      fp8_b = operand(b_scaling, n, arena);
      amax = arena.allocate("amax", DType::kFloat32, {1});
      workspace_bytes = std::max(workspace_bytes, fp8_matmul_workspace_bytes(n, n, n, stream));
    }
    source = arena.allocate("source", DType::kUInt8, {sizes.copy_bytes});
    target = arena.allocate("target", DType::kUInt8, {sizes.copy_bytes});
    workspace = arena.allocate("workspace", DType::kUInt8, {workspace_bytes});
  }

  static Fp8Operand operand(Scaling scaling, int64_t n, Arena& arena) {
    return {.data = arena.allocate("fp8", DType::kFloat8E4M3, {n, n}),
            .scale_inv = arena.allocate("scales", DType::kFloat32, {fp8_scale_count(scaling, n, n)}),
            .scaling = scaling};
  }

  Tensor a, b, d, amax;
  Fp8Operand fp8_a, fp8_b;
  Tensor source, target;
  Tensor workspace;
};

template <typename T>
void fill_rows(const Tensor& matrix, const std::vector<float>& values, Stream& stream) {
  const Buffer buffer =
      Buffer::host(stream.device(), static_cast<int64_t>(values.size()) * dtype_bytes(matrix.dtype()));
  std::transform(values.begin(), values.end(), static_cast<T*>(buffer.data()), [](float x) { return T(x); });
  const int64_t rows = static_cast<int64_t>(values.size()) / matrix.dim(1);
  for (int64_t row = 0; row < matrix.dim(0); row += rows) {
    stream.copy(matrix.rows(row, row + rows).raw(), buffer.data(), buffer.bytes());
  }
  stream.synchronize();  // the host values end here
}

// Normal random values, some rows over and over: zeros would multiply faster than real data do.
void fill_random(const Tensor& matrix, uint64_t seed, Stream& stream) {
  constexpr int64_t kRows = 64;
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(kRows * matrix.dim(1)));
  std::generate(values.begin(), values.end(), [&] { return normal(random); });
  if (matrix.dtype() == DType::kBFloat16) return fill_rows<BFloat16>(matrix, values, stream);
  fill_rows<float>(matrix, values, stream);
}

// Median seconds of the second half of the runs; the first half brings the clock to where it stays.
double time_runs(int64_t runs, const std::function<void()>& work, Stream& stream) {
  std::vector<Event> events;
  for (int64_t i = 0; i <= runs; ++i) events.emplace_back(stream.device(), true);
  work();
  for (size_t i = 0; i < events.size(); ++i) {
    if (i > 0) work();
    events[i].record(stream);
  }
  stream.synchronize();
  std::vector<double> times;
  for (size_t i = events.size() / 2; i < events.size(); ++i) {
    times.push_back(events[i].milliseconds_since(events[i - 1]) / 1e3);
  }
  return median(times);
}

void quantize_rows(const Fp8Operand& rows, const Tensor& x, const Tensor& amax_tensor, Stream& stream) {
  const bool per_tensor = rows.scaling == Scaling::kTensor;
  stream.zero(amax_tensor);
  if (per_tensor) amax({.out = amax_tensor, .x = x.view({x.numel()})}, stream);
  quantize({.rows = rows, .columns = {}, .x = x, .amax = per_tensor ? amax_tensor : Tensor(), .amax_out = {}}, stream);
}

}  // namespace

DeviceRates measure_rates(const PrecisionConfig& precision, Stream& stream) {
  const RateSizes sizes(stream.is_cuda());
  Arena plan(stream.device());
  const RateBuffers planned(precision, sizes, stream, plan);
  Arena arena(stream.device(), plan.used());
  const RateBuffers m(precision, sizes, stream, arena);
  stream.set_workspace(m.workspace);
  fill_random(m.a, 1, stream);
  fill_random(m.b, 2, stream);
  const double side = static_cast<double>(sizes.n);
  const double flops = 2 * side * side * side;

  DeviceRates rates;
  const auto product = [&] { matmul({.d = m.d, .a = m.a, .b = m.b, .transpose_b = true}, stream); };
  rates.product = flops / time_runs(sizes.runs, product, stream);
  if (is_fp8(precision.linear)) {
    quantize_rows(m.fp8_a, m.a, m.amax, stream);
    quantize_rows(m.fp8_b, m.b, m.amax, stream);
    const bool fast =
        precision.linear != LinearPrecision::kFp8Blockwise && precision.fast_accumulation != FastAccumulation::kNone;
    const auto fp8 = [&] { fp8_matmul({.d = m.d, .a = m.fp8_a, .b = m.fp8_b, .fast_accumulation = fast}, stream); };
    rates.fp8_product = flops / time_runs(sizes.runs, fp8, stream);
  }
  const auto copy = [&] { stream.copy(m.target, m.source); };
  rates.bandwidth = 2 * static_cast<double>(sizes.copy_bytes) / time_runs(sizes.runs, copy, stream);
  stream.set_workspace({});
  return rates;
}

double floor_ms(const Profiler::Total& total, const DeviceRates& rates) {
  if (total.communication) return 0;
  double products = (total.flops - total.fp8_flops) / rates.product;
  if (total.fp8_flops > 0) products += total.fp8_flops / rates.fp8_product;
  return 1e3 * std::max(products, total.bytes / rates.bandwidth);
}

}  // namespace octavo

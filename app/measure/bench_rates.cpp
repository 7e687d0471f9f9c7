#include "app/measure/bench_rates.h"

#include <algorithm>
#include <random>

#include "core/arena.h"
#include "core/median.h"
#include "kernels/math/multiply_adds.h"
#include "kernels/matmul/matmul.h"

namespace octavo {

namespace {

struct ProductBuffers {
  ProductBuffers(const ProductSize& size, const PrecisionConfig& precision, Stream& stream, Arena& arena) {
    const auto [m, n, k] = size;
    a = arena.allocate("a", precision.compute, {m, k});
    b = arena.allocate("b", precision.compute, {n, k});
    d = arena.allocate("d", precision.compute, {m, n});
    int64_t workspace_bytes = matmul_workspace_bytes(m, n, k, precision.compute, stream);
    if (is_fp8(precision.linear)) {
      fp8_a = operand(traits(precision.linear).activations, m, k, arena);
      fp8_b = operand(traits(precision.linear).weights, n, k, arena);
      amax = arena.allocate("amax", DType::kFloat32, {1});
      workspace_bytes = std::max(workspace_bytes, fp8_matmul_workspace_bytes(m, n, k, stream));
    }
    workspace = arena.allocate("workspace", DType::kUInt8, {workspace_bytes});
  }

  static Fp8Operand operand(Scaling scaling, int64_t rows, int64_t k, Arena& arena) {
    return {.data = arena.allocate("fp8", DType::kFloat8E4M3, {rows, k}),
            .scale_inv = arena.allocate("scales", DType::kFloat32, {fp8_scale_count(scaling, rows, k)}),
            .scaling = scaling};
  }

  Tensor a, b, d, amax;
  Fp8Operand fp8_a, fp8_b;
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
  stream.synchronize();  // The host values are destroyed at the end of this function.
}

void quantize_rows(const Fp8Operand& rows, const Tensor& x, const Tensor& amax_tensor, Stream& stream) {
  const bool per_tensor = traits(rows.scaling).takes_amax;
  stream.zero(amax_tensor);
  if (per_tensor) amax({.out = amax_tensor, .x = x.view({x.numel()})}, stream);
  quantize({.cast = {.rows = rows, .amax = amax_tensor}, .x = x}, stream);
}

// Returns a number of runs after which a GPU's clock has settled, and which a CPU completes quickly.
int64_t product_runs(double flops, const Stream& stream) {
  const double enough_flops = stream.is_cuda() ? 1.1e14 : 2.1e10;
  return std::clamp<int64_t>(static_cast<int64_t>(enough_flops / flops), 10, 400);
}

}  // namespace

void fill_random(const Tensor& matrix, uint64_t seed, Stream& stream) {
  constexpr int64_t kRows = 64;
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(kRows * matrix.dim(1)));
  std::generate(values.begin(), values.end(), [&] { return normal(random); });
  if (matrix.dtype() == DType::kBFloat16) return fill_rows<BFloat16>(matrix, values, stream);
  fill_rows<float>(matrix, values, stream);
}

std::vector<double> time_each(int64_t runs, const std::function<void()>& work, Stream& stream) {
  std::vector<Event> events;
  for (int64_t i = 0; i <= runs; ++i) events.emplace_back(stream.device(), true);
  for (size_t i = 0; i < events.size(); ++i) {
    if (i > 0) work();
    events[i].record(stream);
  }
  stream.synchronize();
  std::vector<double> seconds;
  for (size_t i = 1; i < events.size(); ++i) seconds.push_back(events[i].milliseconds_since(events[i - 1]) / 1e3);
  return seconds;
}

double time_runs(int64_t runs, const std::function<void()>& work, Stream& stream) {
  work();
  std::vector<double> seconds = time_each(runs, work, stream);
  seconds.erase(seconds.begin(), seconds.begin() + std::ssize(seconds) / 2);
  return median(seconds);
}

double measure_product(const ProductSize& size, const PrecisionConfig& precision, Stream& stream) {
  Arena plan(stream.device());
  const ProductBuffers planned(size, precision, stream, plan);
  Arena arena(stream.device(), plan.used());
  const ProductBuffers p(size, precision, stream, arena);
  stream.set_workspace(p.workspace);
  fill_random(p.a, 1, stream);
  fill_random(p.b, 2, stream);
  std::function<void()> product = [&] { matmul({.d = p.d, .a = p.a, .b = p.b, .transpose_b = true}, stream); };
  if (is_fp8(precision.linear)) {
    quantize_rows(p.fp8_a, p.a, p.amax, stream);
    quantize_rows(p.fp8_b, p.b, p.amax, stream);
    const bool fast = accumulates_fast(precision.linear, precision.fast_accumulation, true);
    product = [&, fast] { fp8_matmul({.d = p.d, .a = p.fp8_a, .b = p.fp8_b, .fast_accumulation = fast}, stream); };
  }
  const double seconds = time_runs(product_runs(size.flops(), stream), product, stream);
  stream.set_workspace({});
  return size.flops() / seconds;
}

double measure_multiply_adds(Stream& stream) {
  constexpr int64_t kRounds = 1'000'000;  // Number of rounds, which take milliseconds.
  constexpr int64_t kRuns = 20;
  double flops = 0;
  const double seconds = time_runs(
      kRuns, [&] { flops = cpu::run_multiply_adds(kRounds); }, stream);
  return flops / seconds;
}

double measure_bandwidth(Stream& stream) {
  const int64_t bytes =
      stream.is_cuda() ? int64_t{1} << 30 : int64_t{1} << 27;  // Size of the copy, which does not fit into any cache.
  Arena arena(stream.device(), 2 * bytes);
  const Tensor source = arena.allocate("source", DType::kUInt8, {bytes});
  const Tensor target = arena.allocate("target", DType::kUInt8, {bytes});
  const auto copy = [&] { stream.copy(target, source); };
  return 2 * static_cast<double>(bytes) / time_runs(stream.is_cuda() ? 100 : 10, copy, stream);
}

DeviceRates measure_rates(const PrecisionConfig& precision, Stream& stream) {
  const int64_t n = stream.is_cuda() ? 8192 : 1024;
  PrecisionConfig plain = precision;
  plain.linear = LinearPrecision::kBFloat16;
  DeviceRates rates;
  rates.product = measure_product({n, n, n}, plain, stream);
  PrecisionConfig fp8 = precision;
  if (!is_fp8(precision.linear) && is_fp8(precision.lm_head)) fp8.linear = kLmHeadRecipe;
  if (is_fp8(fp8.linear)) rates.fp8_product = measure_product({n, n, n}, fp8, stream);
  rates.bandwidth = measure_bandwidth(stream);
  return rates;
}

double floor_ms(const Profiler::Total& total, const DeviceRates& rates) {
  if (total.communication) return 0;
  double products = (total.flops - total.fp8_flops) / rates.product;
  if (total.fp8_flops > 0) products += total.fp8_flops / rates.fp8_product;
  return 1e3 * std::max(products, total.bytes / rates.bandwidth);
}

}  // namespace octavo

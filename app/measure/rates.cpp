#include "app/measure/rates.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "app/predict/predictor.h"
#include "core/arena.h"
#include "core/error.h"
#include "core/files/output_file.h"
#include "core/format.h"
#include "core/median.h"
#include "kernels/attention/sdpa.h"
#include "kernels/matmul/matmul.h"
#include "parallel/communicator.h"

namespace octavo {

namespace {

struct MatmulBuffers {
  MatmulBuffers(const MatmulSize& size, const PrecisionConfig& precision, Stream& stream, Arena& arena) {
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
  std::ranges::transform(values, static_cast<T*>(buffer.data()), [](float x) { return T(x); });
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

// Fills a matrix [rows, columns] in float32 or bfloat16 with normally distributed random values, because multiplying
// zeros would be faster than real data. Some rows are repeated.
// Requires: the number of rows is a multiple of 64.
void fill_random(const Tensor& matrix, uint64_t seed, Stream& stream) {
  constexpr int64_t kRows = 64;
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(kRows * matrix.dim(1)));
  std::ranges::generate(values, [&] { return normal(random); });
  if (matrix.dtype() == DType::kBFloat16) return fill_rows<BFloat16>(matrix, values, stream);
  fill_rows<float>(matrix, values, stream);
}

// Returns the median time of the second half of `runs` runs in seconds. The first half lets the clock settle.
double time_runs(int64_t runs, const std::function<void()>& work, Stream& stream) {
  work();
  std::vector<double> seconds = time_each(runs, work, stream);
  seconds.erase(seconds.begin(), seconds.begin() + std::ssize(seconds) / 2);
  return median(seconds);
}

// Returns the FLOP/s of d = a b^T with a [m, k] and b [n, k], in the compute dtype if precision.linear is bfloat16,
// else with quantized operands of the FP8 recipe. Uses fast accumulation unless the config disables it or the recipe
// does not support it. Removes the stream's workspace.
// Requires: m, n and k are multiples of 128.
double measure_matmul(const MatmulSize& size, const PrecisionConfig& precision, Stream& stream) {
  Arena plan(stream.device());
  const MatmulBuffers planned(size, precision, stream, plan);
  Arena arena(stream.device(), plan.used());
  const MatmulBuffers p(size, precision, stream, arena);
  stream.set_workspace(p.workspace);
  fill_random(p.a, 1, stream);
  fill_random(p.b, 2, stream);
  std::function<void()> run = [&] { matmul({.d = p.d, .a = p.a, .b = p.b, .transpose_b = true}, stream); };
  if (is_fp8(precision.linear)) {
    quantize_rows(p.fp8_a, p.a, p.amax, stream);
    quantize_rows(p.fp8_b, p.b, p.amax, stream);
    const bool fast = accumulates_fast(precision.linear, precision.fast_accumulation, true);
    run = [&, fast] { fp8_matmul({.d = p.d, .a = p.fp8_a, .b = p.fp8_b, .fast_accumulation = fast}, stream); };
  }
  // After this number of runs a GPU's clock has settled, and a CPU completes them quickly.
  const double enough_flops = stream.is_cuda() ? 1.1e14 : 2.1e10;
  const auto runs = std::clamp<int64_t>(static_cast<int64_t>(enough_flops / size.flops()), 10, 400);
  const double seconds = time_runs(runs, run, stream);
  stream.set_workspace({});
  return size.flops() / seconds;
}

// Returns the bytes/s of a large copy, counting bytes read and written.
double measure_bandwidth(Stream& stream) {
  const int64_t bytes =
      stream.is_cuda() ? int64_t{1} << 30 : int64_t{1} << 27;  // Size of the copy, which does not fit into any cache.
  Arena arena(stream.device(), 2 * bytes);
  const Tensor source = arena.allocate("source", DType::kUInt8, {bytes});
  const Tensor target = arena.allocate("target", DType::kUInt8, {bytes});
  const auto copy = [&] { stream.copy(target, source); };
  return 2 * static_cast<double>(bytes) / time_runs(stream.is_cuda() ? 100 : 10, copy, stream);
}

struct MeasureSizes {
  DType compute;
  std::vector<MatmulSize> matmuls;  // The last square shape is the largest.
  SdpaShape attention;
  int64_t attention_runs;
  std::vector<int64_t> collective_bytes;  // Sizes in ascending order.
  int64_t collective_runs;
  int64_t disk_bytes;
};

// Returns the sizes for a GPU: squares, then the matmuls of a block and of lm_head of Llama-3 8B for 16,384 tokens,
// each in forward, for the gradient of the input, and for that of the weights, then two matmuls of a 70B model for
// 8,192 tokens with 8 tensor-parallel ranks.
MeasureSizes gpu_sizes() {
  MeasureSizes sizes{.compute = DType::kBFloat16,
                     .matmuls = {{4096, 4096, 4096}, {8192, 8192, 8192}},
                     .attention = {.batch = 1, .seq_len = 8192, .num_heads = 32, .num_kv_heads = 8, .head_dim = 128},
                     .attention_runs = 50,
                     .collective_bytes = {kMiB, 16 * kMiB, 64 * kMiB, 256 * kMiB},
                     .collective_runs = 20,
                     .disk_bytes = 256 * kMiB};
  struct Weight {
    int64_t out, in;
  };
  constexpr int64_t kTokens = 16384;
  for (const auto& [out, in] : {Weight{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}, {128256, 4096}}) {
    sizes.matmuls.push_back({kTokens, out, in});
    if (out != in) sizes.matmuls.push_back({kTokens, in, out});
    sizes.matmuls.push_back({out, in, kTokens});
  }
  sizes.matmuls.insert(sizes.matmuls.end(), {{8192, 1280, 8192}, {8192, 8192, 1024}});
  return sizes;
}

MeasureSizes cpu_sizes() {
  return {.compute = DType::kFloat32,
          .matmuls = {{512, 512, 512}, {1024, 1024, 1024}, {2048, 768, 256}, {2048, 256, 768}},
          .attention = {.batch = 1, .seq_len = 256, .num_heads = 4, .num_kv_heads = 2, .head_dim = 64},
          .attention_runs = 5,
          .collective_bytes = {64 * kKiB, 1024 * kKiB, 4096 * kKiB},
          .collective_runs = 10,
          .disk_bytes = 65536 * kKiB};
}

constexpr int64_t kSmallBytes = 16;  // Bytes per rank of a collective that measures latency.
constexpr int64_t kSmallRuns = 100;

// Runs `work` on all ranks at the same time. If it throws on one rank, it fails on all.
template <typename Work>
void together(ProcessGroup& group, Work work) {
  group.barrier();
  group.throw_on_all_ranks(work);
}

// Returns the kinds of matmul that a config can use on the device. On the CPU FP8 is emulated, so its rate is not
// measured.
std::vector<PrecisionConfig> matmul_kinds(DType compute, const Stream& stream) {
  std::vector<PrecisionConfig> kinds(1);
  kinds[0].compute = compute;
  if (!stream.is_cuda()) return kinds;
  for (const RecipeTraits& recipe : kRecipes) {
    if (!recipe.fp8 || std::string_view(matmul_name(recipe.recipe)) != recipe.name) continue;
    for (const FastAccumulation fast : {FastAccumulation::kAll, FastAccumulation::kNone}) {
      if (fast != FastAccumulation::kNone && !can_accumulate_fast(recipe.recipe)) continue;
      kinds.push_back({.compute = compute, .linear = recipe.recipe, .fast_accumulation = fast});
    }
  }
  return kinds;
}

void measure_matmuls(MachineRates& rates, const MeasureSizes& sizes, Stream& stream) {
  for (const PrecisionConfig& kind : matmul_kinds(sizes.compute, stream)) {
    const std::string precision = precision_name(kind);
    const bool fast = is_fp8(kind.linear) && kind.fast_accumulation != FastAccumulation::kNone;
    // The first rate of each precision uses fast accumulation if there is one.
    const bool is_first = !rates.matmul_flops.contains(precision);
    for (const MatmulSize& shape : sizes.matmuls) {
      const double flops = measure_matmul(shape, kind, stream);
      rates.matmuls.push_back({precision, fast, shape, flops});
      if (is_first && shape.m == shape.n && shape.n == shape.k) rates.matmul_flops[precision] = flops;
    }
  }
}

struct AttentionBuffers {
  AttentionBuffers(const SdpaShape& shape, DType dtype, Stream& stream, Arena& arena) {
    const int64_t tokens = shape.batch * shape.seq_len;
    qkv = arena.allocate("qkv", dtype, {tokens, shape.qkv_width()});
    d_qkv = arena.allocate("d_qkv", dtype, {tokens, shape.qkv_width()});
    out = arena.allocate("out", dtype, {tokens, shape.out_width()});
    d_out = arena.allocate("d_out", dtype, {tokens, shape.out_width()});
    lse = arena.allocate("lse", DType::kFloat32, {shape.batch, shape.num_heads, shape.seq_len});
    workspace = arena.allocate("workspace", DType::kUInt8, {sdpa_workspace_bytes(shape, dtype, stream)});
  }

  Tensor qkv, d_qkv, out, d_out, lse;
  Tensor workspace;
};

AttentionRates measure_attention(const MeasureSizes& sizes, Stream& stream) {
  const SdpaShape& s = sizes.attention;
  Arena plan(stream.device());
  const AttentionBuffers planned(s, sizes.compute, stream, plan);
  Arena arena(stream.device(), plan.used());
  const AttentionBuffers b(s, sizes.compute, stream, arena);
  stream.set_workspace(b.workspace);
  fill_random(b.qkv, 1, stream);
  fill_random(b.d_out, 2, stream);

  const auto forward = [&] {
    sdpa_forward({.shape = s, .out = b.out, .lse = b.lse, .qkv = b.qkv, .documents = {}}, stream);
  };
  const auto backward = [&] {
    sdpa_backward(
        {.shape = s, .d_qkv = b.d_qkv, .d_out = b.d_out, .out = b.out, .lse = b.lse, .qkv = b.qkv, .documents = {}},
        stream);
  };
  AttentionRates rates{.shape = s};
  rates.forward_flops = attention_forward_flops(s) / time_runs(sizes.attention_runs, forward, stream);
  rates.backward_flops = attention_backward_flops(s) / time_runs(sizes.attention_runs, backward, stream);
  stream.set_workspace({});
  return rates;
}

// Measures collectives over all ranks on parts of one tensor.
CollectiveRates measure_collectives(const MeasureSizes& sizes, ProcessGroup& group, Stream& stream) {
  // Returns the number of elements per rank of a tensor of about `bytes`, rounded to units of 16 bytes.
  const auto per_rank = [&](int64_t bytes) {
    return std::max<int64_t>(1, bytes / group.size() / 16) * (16 / dtype_bytes(sizes.compute));
  };
  Arena arena(stream.device());
  Tensor tensor;
  group.throw_on_all_ranks([&] {
    const int64_t elements = per_rank(sizes.collective_bytes.back()) * group.size();
    arena = Arena(stream.device(), elements * dtype_bytes(sizes.compute) + 256);
    tensor = arena.allocate("collective", sizes.compute, {elements});
  });
  const std::unique_ptr<Communicator> world = make_communicator(group, stream);
  const auto rate = [&](const std::string& op, int64_t about_bytes, int64_t runs) -> CollectiveRate {
    const int64_t part = per_rank(about_bytes);
    const Tensor whole = tensor.rows(0, part * world->size());
    const Tensor mine = whole.rows(part * world->rank(), part * (world->rank() + 1));
    const auto work = [&] {
      if (op == "all_gather") return world->all_gather(whole, mine, stream);
      if (op == "reduce_scatter") return world->reduce_scatter_sum(mine, whole, stream);
      world->all_reduce_sum(whole, stream);
    };
    group.barrier();
    const double mine_s = time_runs(runs, work, stream);
    const auto slowest_ns = std::max<int64_t>(1, group.all_reduce_max(static_cast<int64_t>(mine_s * 1e9)));
    const double seconds = static_cast<double>(slowest_ns) / 1e9;
    const double sent = static_cast<double>((op == "all_reduce" ? 2 : 1) * (whole.bytes() - mine.bytes()));
    return {op, whole.bytes(), seconds, sent / seconds};
  };
  CollectiveRates rates{.ranks = group.size(), .sizes = {}};
  rates.latency_s = rate("all_reduce", kSmallBytes * group.size(), kSmallRuns).seconds;
  for (const char* op : {"all_gather", "reduce_scatter", "all_reduce"}) {
    for (const int64_t bytes : sizes.collective_bytes) rates.sizes.push_back(rate(op, bytes, sizes.collective_runs));
  }
  const auto largest = [&](size_t op) { return rates.sizes[(op + 1) * sizes.collective_bytes.size() - 1]; };
  rates.bus_bytes_per_s = std::min(largest(0).bus_bytes_per_s, largest(1).bus_bytes_per_s);
  return rates;
}

// Measures the write speed with random bytes, which no file system can compress.
double measure_disk(const std::string& dir, int64_t bytes, int rank) {
  constexpr int64_t kBlockBytes = 4 << 20;
  std::vector<uint64_t> block(kBlockBytes / sizeof(uint64_t));
  std::mt19937_64 random(static_cast<uint64_t>(rank) + 1);
  std::ranges::generate(block, std::ref(random));
  // Removed when it is destroyed, because it is never renamed to its final name.
  OutputFile file(fmt::format("{}/.octavo_doctor_{}_{}", dir, rank, ::getpid()));
  const auto start = std::chrono::steady_clock::now();
  for (int64_t written = 0; written < bytes; written += kBlockBytes) file.write(std::span<const uint64_t>(block));
  file.finish();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return static_cast<double>(bytes) / seconds.count();
}

}  // namespace

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

DeviceRates measure_rates(const PrecisionConfig& precision, Stream& stream) {
  const int64_t n = stream.is_cuda() ? 8192 : 1024;
  PrecisionConfig plain = precision;
  plain.linear = LinearPrecision::kBFloat16;
  DeviceRates rates;
  rates.matmul = measure_matmul({n, n, n}, plain, stream);
  PrecisionConfig fp8 = precision;
  if (!is_fp8(precision.linear) && is_fp8(precision.lm_head)) fp8.linear = kLmHeadRecipe;
  if (is_fp8(fp8.linear)) rates.fp8_matmul = measure_matmul({n, n, n}, fp8, stream);
  rates.bandwidth = measure_bandwidth(stream);
  return rates;
}

double floor_ms(const Profiler::Total& total, const DeviceRates& rates) {
  if (total.communication) return 0;
  double matmuls = (total.flops - total.fp8_flops) / rates.matmul;
  if (total.fp8_flops > 0) matmuls += total.fp8_flops / rates.fp8_matmul;
  return 1e3 * std::max(matmuls, total.bytes / rates.bandwidth);
}

MachineRates measure_machine(const std::string& disk_dir, bool collectives, ProcessGroup& group, Stream& stream) {
  const MeasureSizes sizes = stream.is_cuda() ? gpu_sizes() : cpu_sizes();
  MachineRates rates;
  rates.multiprocessors = stream.multiprocessors();
  together(group, [&] { measure_matmuls(rates, sizes, stream); });
  together(group, [&] { rates.attention = measure_attention(sizes, stream); });
  together(group, [&] { rates.memory_bytes_per_s = measure_bandwidth(stream); });
  if (collectives && group.size() > 1) rates.collectives = measure_collectives(sizes, group, stream);
  together(group, [&] { rates.disk_write_bytes_per_s = measure_disk(disk_dir, sizes.disk_bytes, group.rank()); });
  return rates;
}

}  // namespace octavo

#include "kernels/attention/rope.h"

#include <cmath>
#include <numbers>
#include <vector>

#include "core/error.h"
#include "core/profiler.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/fp8/fp8_cast.h"
#include "kernels/math/cpu_math.h"

namespace octavo {

namespace {

// Returns the bytes that are moved. A cast also reads and writes the value heads, and an amax reads them.
double bytes_moved(const Rope& args) {
  const int64_t head_dim = args.table.dim(1);
  const auto read = static_cast<double>(args.qkv.bytes());
  const int passes = args.cast.is_of(args.amax) ? 2 : 1;
  const double cast = args.cast.defined() ? read + result_bytes(args.cast, args.qkv) : 0;
  if (args.cast.defined() && rope_casts_heads_of(head_dim)) return (passes - 1) * read + cast;
  const int64_t value_bytes = args.qkv.dim(0) * args.num_kv_heads * head_dim * dtype_bytes(args.qkv.dtype());
  return 2 * read - (args.amax.defined() ? 1 : 2) * static_cast<double>(value_bytes) + cast;
}

double scaled_frequency(double inv_freq, const RopeScaling& scaling) {
  const double original = static_cast<double>(scaling.original_max_position_embeddings);
  const double wavelength = 2 * std::numbers::pi / inv_freq;
  if (wavelength < original / scaling.high_freq_factor) return inv_freq;
  if (wavelength > original / scaling.low_freq_factor) return inv_freq / scaling.factor;
  const double smooth =
      (original / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - smooth) * inv_freq / scaling.factor + smooth * inv_freq;
}

}  // namespace

void rope_table(const Tensor& host_table, double theta, const std::optional<RopeScaling>& scaling,
                const std::function<int64_t(int64_t)>& position) {
  const int64_t seq_len = host_table.dim(0);
  const int64_t head_dim = host_table.dim(1);
  const int64_t half = head_dim / 2;
  float* table = host_table.data<float>();
  std::vector<double> positions;
  positions.reserve(static_cast<size_t>(seq_len));
  for (int64_t t = 0; t < seq_len; ++t) positions.push_back(static_cast<double>(position ? position(t) : t));
  for (int64_t i = 0; i < half; ++i) {
    double inv_freq = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    if (scaling) inv_freq = scaled_frequency(inv_freq, *scaling);
    for (int64_t t = 0; t < seq_len; ++t) {
      const double angle = positions[static_cast<size_t>(t)] * inv_freq;
      table[t * head_dim + i] = static_cast<float>(std::cos(angle));
      table[t * head_dim + half + i] = static_cast<float>(std::sin(angle));
    }
  }
}

namespace cpu {

template <typename T>
void rope(const Rope& args) {
  const int64_t tokens = args.qkv.dim(0);
  const int64_t width = args.qkv.dim(1);
  const int64_t seq_len = args.table.dim(0);
  const int64_t head_dim = args.table.dim(1);
  const int64_t half = head_dim / 2;
  const float sign = args.inverse ? -1.0f : 1.0f;
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t) {
    const float* cos = args.table.data<float>() + (t % seq_len) * head_dim;
    const float* sin = cos + half;
    for (int64_t head = 0; head < args.num_heads + args.num_kv_heads; ++head) {
      T* low = args.qkv.data<T>() + t * width + head * head_dim;
      T* high = low + half;
#pragma omp simd
      for (int64_t i = 0; i < half; ++i) {
        const float a = static_cast<float>(low[i]);
        const float b = static_cast<float>(high[i]);
        low[i] = T(a * cos[i] - b * (sign * sin[i]));
        high[i] = T(b * cos[i] + a * (sign * sin[i]));
      }
    }
  }
}

}  // namespace cpu

void rope(const Rope& args, Stream& stream) {
  const int64_t head_dim = args.table.dim(1);
  const int64_t rotated = (args.num_heads + args.num_kv_heads) * head_dim;
  expect_tensor(args.table, "rope table", DType::kFloat32, {args.table.dim(0), head_dim});
  expect_tensor(args.qkv, "rope qkv", args.qkv.dtype(), {args.qkv.dim(0), rotated + args.num_kv_heads * head_dim});
  CHECK(args.qkv.dim(0) % args.table.dim(0) == 0, "rope: {} tokens are not whole sequences of {}", args.qkv.dim(0),
        args.table.dim(0));
  if (args.amax.defined()) expect_tensor(args.amax, "rope amax", DType::kFloat32, {1});
  check_cast(args.cast, CastOf::kGradient, "rope", args.qkv, stream);
  const OpTimer timer(stream, {.name = args.inverse ? "rope_backward" : "rope_forward",
                               .bytes = bytes_moved(args),
                               .casts = args.cast.defined()});
  if (ran_elsewhere<cuda::rope>(args, stream)) return;
  cpu::with_compute_dtype(args.qkv.dtype(), [&]<typename T>() {
    cpu::rope<T>(args);
    cpu::update_amax<T>(args.amax, args.qkv);
  });
  cpu::cast_result(args.cast, args.qkv);
}

}  // namespace octavo

// Attention over a cache on the GPU compared with the CPU, and with float64. The bounds are those of exact_sdpa.h
// without the rounding to bfloat16, because these kernels do not use tensor cores. Here |x| is the sum of the
// magnitudes:
//
//   out_i   sum_j (e_i + 16 u) p_j |v_j|,   e_i = 12 u (1 + max_j c sum |q k|)
#include "kernels/attention/cached_sdpa.h"
#include "tests/kernels/parity.h"

namespace octavo::parity_cached_sdpa_test {
namespace {

class CachedSdpaParity : public ComputeDtypeParity {
 protected:
  struct Tensors {
    Twin qkv, out, keys, values;
    Tensors(const SdpaShape& s, DType dtype, int64_t sequences, int64_t capacity)
        : qkv(dtype, {s.batch * s.seq_len, s.qkv_width()}),
          out(dtype, {s.batch * s.seq_len, s.out_width()}),
          keys(dtype, {sequences, capacity, s.num_kv_heads * s.head_dim}),
          values(dtype, {sequences, capacity, s.num_kv_heads * s.head_dim}) {}
    SdpaCache on(const Stream& s) const { return {keys.on(s), values.on(s)}; }
  };

  static Exact exact_out(const SdpaShape& s, const Tensors& t, int64_t position) {
    Exact exact(t.out.cpu().numel());
    const double scale = 1 / std::sqrt(static_cast<double>(s.head_dim));
    const int64_t capacity = t.keys.cpu().dim(1);
    for (int64_t row = 0; row < s.batch * s.seq_len; ++row) {
      for (int64_t head = 0; head < s.num_heads; ++head) {
        const int64_t q = row * s.qkv_width() + head * s.head_dim;
        const int64_t width = s.num_kv_heads * s.head_dim;
        const int64_t first = row / s.seq_len * capacity * width + head / (s.num_heads / s.num_kv_heads) * s.head_dim;
        const auto keys = static_cast<size_t>(position + row % s.seq_len + 1);
        std::vector<double> p(keys);
        double largest = 0;
        for (size_t j = 0; j < keys; ++j) {
          double magnitude = 0;
          for (int64_t c = 0; c < s.head_dim; ++c) {
            const double product = static_cast<double>(t.qkv.at(q + c)) *
                                   static_cast<double>(t.keys.at(first + static_cast<int64_t>(j) * width + c)) * scale;
            p[j] += product;
            magnitude += std::abs(product);
          }
          largest = std::max(largest, magnitude);
        }
        const double max = *std::max_element(p.begin(), p.end());
        double total = 0;
        for (double& score : p) total += score = std::exp(score - max);
        const double error = (12 * (1 + largest) + 16) * kFloat32Rounding;
        for (int64_t c = 0; c < s.head_dim; ++c) {
          double sum = 0;
          double slack = 0;
          for (size_t j = 0; j < keys; ++j) {
            const double term =
                p[j] / total * static_cast<double>(t.values.at(first + static_cast<int64_t>(j) * width + c));
            sum += term;
            slack += error * std::abs(term);
          }
          exact.set(row * s.out_width() + head * s.head_dim + c, sum, slack);
        }
      }
    }
    return exact;
  }

  void compare(const SdpaShape& s, Tensors& t, int64_t position) {
    SCOPED_TRACE("batch " + std::to_string(s.batch) + ", " + std::to_string(s.seq_len) + " tokens from " +
                 std::to_string(position) + ", heads " + std::to_string(s.num_heads) + "/" +
                 std::to_string(s.num_kv_heads) + " of " + std::to_string(s.head_dim));
    on_both([&](Stream& stream) {
      sdpa_cache_append({.shape = s, .cache = t.on(stream), .qkv = t.qkv.on(stream), .position = position}, stream);
    });
    expect_equal_bytes(t.keys, "keys");
    expect_equal_bytes(t.values, "values");
    poison(t.out);
    on_both([&](Stream& stream) {
      cached_sdpa(
          {.shape = s, .out = t.out.on(stream), .qkv = t.qkv.on(stream), .cache = t.on(stream), .position = position},
          stream);
    });
    expect_close(t.out, "out", tolerance());
    expect_exact(t.out, "cached_sdpa out", exact_out(s, t, position));
  }
};
INSTANTIATE_TEST_SUITE_P(Gpu, CachedSdpaParity, ::testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& instance) { return std::string(dtype_name(instance.param)); });

TEST_P(CachedSdpaParity, OneTokenAndSeveral) {
  struct Case {
    SdpaShape shape;
    int64_t position;
  };
  for (const Case& c : {Case{{1, 1, 1, 1, 32}, 0},
                        {{1, 1, 2, 1, 64}, 1},
                        {{2, 1, 4, 2, 128}, 3},
                        {{3, 1, 6, 2, 64}, 63},
                        {{1, 1, 16, 8, 128}, 64},
                        {{5, 1, 3, 3, 32}, 65},
                        {{2, 1, 8, 1, 128}, 1020},
                        {{1, 1, 32, 8, 128}, 4099},
                        {{2, 7, 4, 2, 64}, 13},
                        {{1, 131, 2, 1, 128}, 0}}) {
    const SdpaShape& s = c.shape;
    Tensors t(s, dtype(), s.batch + 1, c.position + s.seq_len + 3);
    fill(t.qkv, 1.5f);
    fill(t.keys, 1.5f);
    fill(t.values);
    compare(s, t, c.position);
  }
}

// One score is far above or far below all others. It is the first, a middle or the last one.
TEST_P(CachedSdpaParity, FarScores) {
  const SdpaShape s{1, 1, 2, 1, 64};
  for (const int64_t largest : {0, 100, 199}) {
    for (const float size : {-8.0f, 8.0f}) {
      Tensors t(s, dtype(), 1, 200);
      fill(t.qkv, 0.1f);
      fill(t.keys, 0.1f);
      fill(t.values);
      for (int64_t j = 0; j < 200; ++j) t.keys.set(j * 64, size * 4 + (j == largest ? 8.0f : 0.0f));
      for (const int64_t head : {0, 1, 2}) t.qkv.set(head * 64, 16.0f);
      upload(t.qkv);
      upload(t.keys);
      compare(s, t, 199);
    }
  }
}

}  // namespace
}  // namespace octavo::parity_cached_sdpa_test

// Expected results of ops, element by element: the exact value in float64, and the largest error that float32
// arithmetic may have. Unlike a norm over the tensor, this detects a few wrong elements among millions.
//
//   |result - exact| <= 1/2 unit in the last place of the result's dtype + slack
//
// The first term is the final rounding to the dtype of the result. The slack bounds the errors of the arithmetic before
// it. Its units are u = 2^-24, the rounding error of a float32 operation, and A, the sum of the magnitudes of all terms
// that are added for the element:
//
//   op                   result      slack                    A
//   embedding_backward   d_table     6 u A                    |d_table before| + sum |d_out|
//   rms_norm_forward     rstd        (4 + sqrt(n)/8) u A      rstd; n = hidden: the sum of squares
//                        out         (8 + sqrt(n)/8) u A      |out|
//   rms_norm_backward    d_h         8 u A                    rstd |w d_out| + |h| rstd^3 mean |w d_out h|
//                                                             + |d_residual|
//                        d_weight    4 u A                    |d_weight before| + sum |d_out h rstd|
//   rope                 qkv         3 u A                    |a cos| + |b sin|; 0 for value heads
//   qk_norm_rope_forward out         (11 + sqrt(n)/8) u A     as rope, of the normalized head; n = head_dim
//   qk_norm_rope_backward
//                        d_qkv       (16 + sqrt(n)/2) u A     rms_norm_backward's, |d| = |d_out cos| + |other sin|
//                        d_weight    (12 + sqrt(n)/8) u A     as rms_norm_backward
//   swiglu_forward       out         (8 + 2 |g|) u A          |out|; |g| because the argument of exp is rounded
//   swiglu_backward      d_gate      (12 + 2 |g|) u A         |d u s| (1 + |g| (1 - s)), s = sigmoid(g)
//                        d_up        (8 + 2 |g|) u A          |d_up|
//   cross_entropy        losses      2e-6 A                   1 + loss
//                        d_logits    k u A + 2 u scale        scale p; k = 16 + 2 |x - max| + sqrt(vocabulary)/16;
//                                                             2 u scale only at the target
//   adamw                m, v        8 u A                    sum of the magnitudes of their two addends
//                        master      2 u |w| + 24 u lr A      magnitudes of the update's addends
//   sum, sum_of_squares  out         8 u A                    |out before| + sum |addends|
//   matmul               d           (4 + sqrt(k)/8) u A      |d before| + sum |a b|
//   fp8_matmul           d           2^-12 A, fast 2^-11 A    as matmul
//
// Tensor cores truncate partial sums; in FP8 matmuls they keep about 14 bits. cuBLASLt rounds a matmul result before it
// adds it to a bfloat16 output, which allows another 2^-8 of that result. exact_sdpa.h has the bounds of attention.
//
// The laws of the ops (law.h) compare the CPU and GPUs with these bounds, and show that a single wrong element is
// detected. exact_test.cpp tests the comparison itself.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/error.h"
#include "kernels/attention/qk_norm_rope.h"
#include "kernels/fp8/fp8.h"
#include "kernels/matmul/matmul.h"
#include "kernels/optimizer/adamw.h"

namespace octavo {

constexpr double kFloat32Rounding = 0x1p-24;

struct Exact {
  explicit Exact(int64_t n) : values(static_cast<size_t>(n)), slack(static_cast<size_t>(n)) {}
  void set(int64_t i, double value, double allowed) {
    values[static_cast<size_t>(i)] = value;
    slack[static_cast<size_t>(i)] = allowed;
  }

  std::vector<double> values;
  std::vector<double> slack;
};

// ---- Comparison

// Returns the unit in the last place of a float of this dtype and magnitude.
inline double unit_in_the_last_place(DType dtype, double magnitude) {
  const int digits = dtype == DType::kBFloat16 ? 8 : 24;
  int exponent = -126;
  if (magnitude >= 0x1p-126) std::frexp(magnitude, &exponent);  // magnitude is f 2^exponent with f in [0.5, 1).
  return std::ldexp(1.0, exponent - digits);
}

struct WrongElement {
  int64_t index;
  double found, expected, ratio;  // The ratio is the error divided by the allowed error.
};

struct Comparison {
  int64_t elements = 0;
  int64_t wrong = 0;
  double worst_ratio = 0;           // Largest ratio of all elements.
  std::vector<WrongElement> worst;  // The elements with the largest errors out of bounds.

  // Returns one line of summary and one line for each element of `worst`. `width` is the number of elements per row.
  std::string describe(int64_t width) const {
    std::string text = fmt::format("{} of {} elements out of bounds", wrong, elements);
    for (const WrongElement& e : worst) {
      text += fmt::format(
          "\n  element {} (row {}, column {}): {:.9g}, expected {:.9g}, off by {:.3g}, {:.2f} x allowed", e.index,
          e.index / width, e.index % width, e.found, e.expected, std::abs(e.found - e.expected), e.ratio);
    }
    return text;
  }
};

// Returns the error of element i as a fraction of the allowed error.
inline double error_ratio(float found, DType dtype, const Exact& exact, size_t i) {
  const auto value = static_cast<double>(found);
  const double expected = exact.values[i];
  if (value == expected || (std::isnan(value) && std::isnan(expected))) return 0;
  const double error = std::abs(value - expected);
  const double allowed =
      exact.slack[i] + unit_in_the_last_place(dtype, std::max(std::abs(value), std::abs(expected))) / 2;
  return error <= std::numeric_limits<double>::max() ? error / allowed : std::numeric_limits<double>::infinity();
}

inline Comparison compare_elements(const std::vector<float>& found, DType dtype, const Exact& exact) {
  constexpr size_t kShown = 5;
  Comparison result;
  result.elements = static_cast<int64_t>(found.size());
  CHECK(found.size() == exact.values.size(), "{} elements, expected {}", found.size(), exact.values.size());
  for (size_t i = 0; i < found.size(); ++i) {
    const double ratio = error_ratio(found[i], dtype, exact, i);
    result.worst_ratio = std::max(result.worst_ratio, ratio);
    if (ratio <= 1) continue;
    ++result.wrong;
    const WrongElement wrong{static_cast<int64_t>(i), static_cast<double>(found[i]), exact.values[i], ratio};
    const auto place = std::upper_bound(result.worst.begin(), result.worst.end(), wrong,
                                        [](const WrongElement& a, const WrongElement& b) { return a.ratio > b.ratio; });
    result.worst.insert(place, wrong);
    if (result.worst.size() > kShown) result.worst.pop_back();
  }
  return result;
}

// ---- Reading tensors in host memory

inline double element(const Tensor& x, int64_t i) {
  switch (x.dtype()) {
    case DType::kFloat32:
      return static_cast<double>(x.data<float>()[i]);
    case DType::kBFloat16:
      return static_cast<double>(static_cast<float>(x.data<BFloat16>()[i]));
    case DType::kFloat8E4M3:
      return static_cast<double>(static_cast<float>(x.data<Float8E4M3>()[i]));
    case DType::kFloat8E5M2:
      return static_cast<double>(static_cast<float>(x.data<Float8E5M2>()[i]));
    default:
      return x.data<int32_t>()[i];
  }
}

inline std::vector<double> elements(const Tensor& x) {
  std::vector<double> all(static_cast<size_t>(x.numel()));
  for (int64_t i = 0; i < x.numel(); ++i) all[static_cast<size_t>(i)] = element(x, i);
  return all;
}

inline std::vector<float> floats(const Tensor& x) {
  std::vector<float> all(static_cast<size_t>(x.numel()));
  for (int64_t i = 0; i < x.numel(); ++i) all[static_cast<size_t>(i)] = static_cast<float>(element(x, i));
  return all;
}

// ---- Exact results of ops. Call these before the op, because it may overwrite its inputs.

inline Exact exact_embedding_backward(const Tensor& d_table, const Tensor& d_out, const Tensor& ids,
                                      int64_t vocab_begin = 0) {
  const int64_t rows = d_table.dim(0);
  const int64_t hidden = d_table.dim(1);
  Exact exact(d_table.numel());
  std::vector<double>& magnitude = exact.slack;
  for (int64_t i = 0; i < d_table.numel(); ++i) exact.set(i, element(d_table, i), std::abs(element(d_table, i)));
  for (int64_t t = 0; t < ids.numel(); ++t) {
    const int64_t row = ids.data<int32_t>()[t] - vocab_begin;
    if (row < 0 || row >= rows) continue;
    for (int64_t c = 0; c < hidden; ++c) {
      const double addend = element(d_out, t * hidden + c);
      exact.values[static_cast<size_t>(row * hidden + c)] += addend;
      magnitude[static_cast<size_t>(row * hidden + c)] += std::abs(addend);
    }
  }
  for (double& slack : exact.slack) slack *= 6 * kFloat32Rounding;
  return exact;
}

struct ExactRmsNorm {
  Exact out, rstd;
};
// `h` is the tensor that was normalized, that is x + residual if there is a residual.
inline ExactRmsNorm exact_rms_norm(const Tensor& h, const Tensor& weight, double eps = double{1e-5f}) {
  const int64_t tokens = h.dim(0);
  const int64_t hidden = h.dim(1);
  const double sum_slack = std::sqrt(static_cast<double>(hidden)) / 8;
  ExactRmsNorm exact{Exact(h.numel()), Exact(tokens)};
  for (int64_t t = 0; t < tokens; ++t) {
    double squares = 0;
    for (int64_t c = 0; c < hidden; ++c) squares += element(h, t * hidden + c) * element(h, t * hidden + c);
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(hidden) + eps);
    exact.rstd.set(t, rstd, (4 + sum_slack) * kFloat32Rounding * rstd);
    for (int64_t c = 0; c < hidden; ++c) {
      const double out = element(h, t * hidden + c) * rstd * element(weight, c);
      exact.out.set(t * hidden + c, out, (8 + sum_slack) * kFloat32Rounding * std::abs(out));
    }
  }
  return exact;
}

struct ExactRmsNormBackward {
  Exact d_h, d_weight;
};
inline ExactRmsNormBackward exact_rms_norm_backward(const Tensor& d_weight, const Tensor& d_out,
                                                    const Tensor& d_residual, const Tensor& h, const Tensor& rstd,
                                                    const Tensor& weight) {
  const int64_t tokens = h.dim(0);
  const int64_t hidden = h.dim(1);
  ExactRmsNormBackward exact{Exact(h.numel()), Exact(hidden)};
  for (int64_t c = 0; c < hidden; ++c) exact.d_weight.set(c, element(d_weight, c), std::abs(element(d_weight, c)));
  for (int64_t t = 0; t < tokens; ++t) {
    const double r = element(rstd, t);
    double dot = 0;
    double dot_magnitude = 0;
    for (int64_t c = 0; c < hidden; ++c) {
      const double x = element(h, t * hidden + c);
      const double d = element(d_out, t * hidden + c);
      dot += d * element(weight, c) * x;
      dot_magnitude += std::abs(d * element(weight, c) * x);
      exact.d_weight.values[static_cast<size_t>(c)] += d * x * r;
      exact.d_weight.slack[static_cast<size_t>(c)] += std::abs(d * x * r);
    }
    const double factor = r * r / static_cast<double>(hidden);
    for (int64_t c = 0; c < hidden; ++c) {
      const int64_t i = t * hidden + c;
      const double past = d_residual.defined() ? element(d_residual, i) : 0.0;
      const double normed = element(d_out, i) * element(weight, c);
      const double magnitude =
          r * (std::abs(normed) + std::abs(element(h, i)) * factor * dot_magnitude) + std::abs(past);
      exact.d_h.set(i, past + r * (normed - element(h, i) * factor * dot), 8 * kFloat32Rounding * magnitude);
    }
  }
  for (double& slack : exact.d_weight.slack) slack *= 4 * kFloat32Rounding;
  return exact;
}

struct RopeHeads {
  int64_t rotated, values;  // Number of query and key heads together, which are rotated, and number of value heads.
  bool inverse;
};
inline Exact exact_rope(const Tensor& qkv, const Tensor& table, const RopeHeads& heads) {
  const int64_t head_dim = table.dim(1);
  const int64_t half = head_dim / 2;
  const int64_t width = (heads.rotated + heads.values) * head_dim;
  Exact exact(qkv.numel());
  for (int64_t i = 0; i < qkv.numel(); ++i) {
    const int64_t column = i % width;
    const int64_t in_head = column % head_dim;
    if (column >= heads.rotated * head_dim) {
      exact.set(i, element(qkv, i), 0);
      continue;
    }
    const bool high = in_head >= half;
    const int64_t entry = i / width % table.dim(0) * head_dim + in_head % half;
    const double own = element(qkv, i) * element(table, entry);
    const double sin = element(table, entry + half) * (heads.inverse != high ? -1.0 : 1.0);
    const double other = -element(qkv, high ? i - half : i + half) * sin;
    exact.set(i, own + other, 3 * kFloat32Rounding * (std::abs(own) + std::abs(other)));
  }
  return exact;
}

// Returns rstd of the head of n elements that starts at element `at`.
inline double exact_head_rstd(const Tensor& x, int64_t at, int64_t n, double eps) {
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += element(x, at + i) * element(x, at + i);
  return 1 / std::sqrt(squares / static_cast<double>(n) + eps);
}

// Returns the exact output of qk_norm_rope_forward, in the layout of qkv.
inline Exact exact_qk_norm_rope(const QkNormRopeForward& a) {
  const int64_t n = a.table.dim(1);
  const int64_t half = n / 2;
  const int64_t heads = a.num_heads + 2 * a.num_kv_heads;
  const double slack = (11 + std::sqrt(static_cast<double>(n)) / 8) * kFloat32Rounding;
  Exact exact(a.qkv.numel());
  for (int64_t at = 0; at < a.qkv.numel(); at += n) {
    const int64_t head = at / n % heads;
    if (head >= a.num_heads + a.num_kv_heads) {
      for (int64_t i = at; i < at + n; ++i) exact.set(i, element(a.qkv, i), 0);
      continue;
    }
    const Tensor& weight = head < a.num_heads ? a.q_weight : a.k_weight;
    const int64_t row = at / n / heads % a.table.dim(0) * n;
    const double rstd = exact_head_rstd(a.qkv, at, n, static_cast<double>(a.eps));
    const auto normed = [&](int64_t i) { return element(a.qkv, at + i) * rstd * element(weight, i); };
    for (int64_t i = 0; i < n; ++i) {
      const double own = normed(i) * element(a.table, row + i % half);
      const double other = normed((i + half) % n) * element(a.table, row + half + i % half) * (i < half ? -1 : 1);
      exact.set(at + i, own + other, slack * (std::abs(own) + std::abs(other)));
    }
  }
  return exact;
}

struct ExactQkNormRopeBackward {
  Exact d_qkv, d_q_weight, d_k_weight;
};
inline ExactQkNormRopeBackward exact_qk_norm_rope_backward(const QkNormRopeBackward& a) {
  const int64_t n = a.table.dim(1);
  const int64_t half = n / 2;
  const int64_t heads = a.num_heads + 2 * a.num_kv_heads;
  const double root = std::sqrt(static_cast<double>(n));
  ExactQkNormRopeBackward exact{Exact(a.qkv.numel()), Exact(n), Exact(n)};
  for (int64_t i = 0; i < n; ++i) {
    exact.d_q_weight.set(i, element(a.d_q_weight, i), std::abs(element(a.d_q_weight, i)));
    exact.d_k_weight.set(i, element(a.d_k_weight, i), std::abs(element(a.d_k_weight, i)));
  }
  std::vector<double> d(static_cast<size_t>(n)), magnitude(d);
  for (int64_t at = 0; at < a.qkv.numel(); at += n) {
    const int64_t head = at / n % heads;
    if (head >= a.num_heads + a.num_kv_heads) {
      for (int64_t i = at; i < at + n; ++i) exact.d_qkv.set(i, element(a.d_qkv, i), 0);
      continue;
    }
    const Tensor& weight = head < a.num_heads ? a.q_weight : a.k_weight;
    Exact& d_weight = head < a.num_heads ? exact.d_q_weight : exact.d_k_weight;
    const int64_t row = at / n / heads % a.table.dim(0) * n;
    const double rstd = exact_head_rstd(a.qkv, at, n, static_cast<double>(a.eps));
    double dot = 0, dot_magnitude = 0;
    for (int64_t i = 0; i < n; ++i) {
      const auto k = static_cast<size_t>(i);
      const double own = element(a.d_qkv, at + i) * element(a.table, row + i % half);
      const double other =
          element(a.d_qkv, at + (i + half) % n) * element(a.table, row + half + i % half) * (i < half ? 1 : -1);
      const double x = element(a.qkv, at + i);
      d[k] = own + other;
      magnitude[k] = std::abs(own) + std::abs(other);
      dot += d[k] * element(weight, i) * x;
      dot_magnitude += magnitude[k] * std::abs(element(weight, i) * x);
      d_weight.values[k] += d[k] * x * rstd;
      d_weight.slack[k] += magnitude[k] * std::abs(x) * rstd;
    }
    const double factor = rstd * rstd / static_cast<double>(n);
    for (int64_t i = 0; i < n; ++i) {
      const auto k = static_cast<size_t>(i);
      const double x = element(a.qkv, at + i);
      const double whole = rstd * (magnitude[k] * std::abs(element(weight, i)) + std::abs(x) * factor * dot_magnitude);
      exact.d_qkv.set(at + i, rstd * (d[k] * element(weight, i) - x * factor * dot),
                      (16 + root / 2) * kFloat32Rounding * whole);
    }
  }
  for (Exact* sums : {&exact.d_q_weight, &exact.d_k_weight}) {
    for (double& slack : sums->slack) slack *= (12 + root / 8) * kFloat32Rounding;
  }
  return exact;
}

struct ExactSwiglu {
  Exact out, d_gate_up;
};
inline ExactSwiglu exact_swiglu(const Tensor& gate_up, const Tensor& d_out) {
  const int64_t tokens = d_out.dim(0);
  const int64_t width = d_out.dim(1);
  ExactSwiglu exact{Exact(d_out.numel()), Exact(gate_up.numel())};
  for (int64_t i = 0; i < tokens * width; ++i) {
    const int64_t at = i / width * 2 * width + i % width;
    const double g = element(gate_up, at);
    const double u = element(gate_up, at + width);
    const double d = element(d_out, i);
    const double s = 1 / (1 + std::exp(-g));
    const double units = (8 + 2 * std::abs(g)) * kFloat32Rounding;
    exact.out.set(i, g * s * u, units * std::abs(g * s * u));
    exact.d_gate_up.set(at, d * u * s * (1 + g * (1 - s)),
                        (units + 4 * kFloat32Rounding) * std::abs(d * u * s) * (1 + std::abs(g) * (1 - s)));
    exact.d_gate_up.set(at + width, d * g * s, units * std::abs(d * g * s));
  }
  return exact;
}

struct ExactCrossEntropy {
  Exact losses;
  Exact z_losses;
  std::vector<Exact> d_logits;  // The gradients of each part of the vocabulary.
};
// Each part has an equal number of columns of the logits. A single part is the whole vocabulary, several parts are
// those of ranks that share it.
inline ExactCrossEntropy exact_cross_entropy(const std::vector<Tensor>& parts, const Tensor& targets, double scale,
                                             double z_loss = 0) {
  const int64_t tokens = targets.numel();
  const int64_t width = parts.front().dim(1);
  const auto vocab = static_cast<double>(width * static_cast<int64_t>(parts.size()));
  ExactCrossEntropy exact{Exact(tokens), Exact(tokens), {}};
  for (const Tensor& part : parts) exact.d_logits.emplace_back(part.numel());
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t target = targets.data<int32_t>()[t];
    if (target < 0) continue;  // The loss and the gradient of an ignored token are zero.
    double max = -std::numeric_limits<double>::infinity();
    double sum = 0;
    for (const Tensor& part : parts) {
      for (int64_t v = 0; v < width; ++v) max = std::max(max, element(part, t * width + v));
    }
    for (const Tensor& part : parts) {
      for (int64_t v = 0; v < width; ++v) sum += std::exp(element(part, t * width + v) - max);
    }
    const double normalizer = std::log(sum) + max;
    const double factor = 1 + 2 * z_loss * normalizer;
    exact.z_losses.set(t, z_loss * normalizer * normalizer, 1e-5 * z_loss * (1 + normalizer * normalizer));
    for (size_t k = 0; k < parts.size(); ++k) {
      for (int64_t v = 0; v < width; ++v) {
        const double x = element(parts[k], t * width + v);
        const double p = std::exp(x - max) / sum;
        const bool hit = static_cast<int64_t>(k) * width + v == target;
        // A sum that is not vectorized has the largest error. The factor adds its own error and that of the normalizer.
        const double units = (16 + 2 * (max - x) + std::sqrt(vocab) / 2) * std::abs(factor) +
                             (z_loss == 0 ? 0 : 4 + 64 * z_loss * (1 + std::abs(normalizer)));
        // Exponentials below the smallest normal float32 become 0.
        const double slack = scale * (units * kFloat32Rounding * p + (hit ? 2 * kFloat32Rounding : 0) + 0x1p-126);
        exact.d_logits[k].set(t * width + v, scale * (factor * p - (hit ? 1 : 0)), slack);
        if (hit) exact.losses.set(t, std::log(sum) + max - x, 2e-6 * (1 + std::log(sum) + max - x));
      }
    }
  }
  return exact;
}

struct ExactAdamw {
  Exact master, exp_avg, exp_avg_sq;
};
inline ExactAdamw exact_adamw(const Adamw& args) {
  const int64_t n = args.master.numel();
  const AdamwOptions& o = args.options;
  double clip = 1;
  if (o.grad_clip > 0) {
    const double norm = std::sqrt(element(args.grad_sum_of_squares, 0));
    clip = std::min(1.0, static_cast<double>(o.grad_clip) / (norm + 1e-6));
  }
  const auto beta1 = static_cast<double>(o.beta1);
  const auto beta2 = static_cast<double>(o.beta2);
  const auto steps = static_cast<double>(o.step);
  ExactAdamw exact{Exact(n), Exact(n), Exact(n)};
  for (int64_t i = 0; i < n; ++i) {
    const double g = clip * element(args.grad, i);
    const double w = element(args.master, i);
    const double old_m = beta1 * element(args.exp_avg, i);
    const double old_v = beta2 * element(args.exp_avg_sq, i);
    const double new_m = static_cast<double>(1 - o.beta1) * g;
    const double new_v = static_cast<double>(1 - o.beta2) * g * g;
    exact.exp_avg.set(i, old_m + new_m, 8 * kFloat32Rounding * (std::abs(old_m) + std::abs(new_m)));
    exact.exp_avg_sq.set(i, old_v + new_v, 8 * kFloat32Rounding * (old_v + new_v));
    const double root = std::sqrt((old_v + new_v) / (1 - std::pow(beta2, steps))) + static_cast<double>(o.eps);
    const double per_m = 1 / (1 - std::pow(beta1, steps)) / root;
    const double decay = static_cast<double>(o.weight_decay) * w;
    const double magnitude = (std::abs(old_m) + std::abs(new_m)) * per_m + std::abs(decay);
    const auto lr = static_cast<double>(o.lr);
    exact.master.set(i, w - lr * ((old_m + new_m) * per_m + decay),
                     kFloat32Rounding * (2 * std::abs(w) + 24 * lr * magnitude));
  }
  return exact;
}

// `out` [1] holds the value before the op, to which the sum is added. Blocks of about 1024 terms are added in float32,
// one after the other if the compiler does not vectorize, so the slack is twice the root of 1024 roundings.
inline Exact exact_sum(const Tensor& out, const Tensor& x, bool of_squares) {
  double sum = element(out, 0);
  double magnitude = std::abs(sum);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double addend = of_squares ? element(x, i) * element(x, i) : element(x, i);
    sum += addend;
    magnitude += std::abs(addend);
  }
  Exact exact(1);
  exact.set(0, sum, 64 * kFloat32Rounding * magnitude);
  return exact;
}

// Multiplies a [m, k] by the transpose of b [n, k]. If `before` [m, n] is defined, it is added. The slack is `units`
// times the sum of the magnitudes of the terms.
inline Exact exact_gemm(const std::vector<double>& a, const std::vector<double>& b, int64_t k, const Tensor& before,
                        double units) {
  const auto m = static_cast<int64_t>(a.size()) / k;
  const auto n = static_cast<int64_t>(b.size()) / k;
  Exact exact(m * n);
#pragma omp parallel for
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const double* row = a.data() + i * k;
      const double* column = b.data() + j * k;
      const double start = before.defined() ? element(before, i * n + j) : 0.0;
      double sum = start;
      double magnitude = std::abs(sum);
#pragma omp simd reduction(+ : sum, magnitude)
      for (int64_t c = 0; c < k; ++c) {
        sum += row[c] * column[c];
        magnitude += std::abs(row[c] * column[c]);
      }
      // cuBLASLt rounds the matmul result before it adds it to a bfloat16 output.
      const double rounded =
          before.defined() && before.dtype() == DType::kBFloat16 ? 0x1p-8 * std::abs(sum - start) : 0;
      exact.set(i * n + j, sum, units * magnitude + rounded);
    }
  }
  return exact;
}

// Returns the matrix [rows, columns] row by row, or its transpose.
inline std::vector<double> matrix(const Tensor& x, bool transpose) {
  std::vector<double> all = elements(x);
  if (!transpose) return all;
  std::vector<double> turned(all.size());
  const int64_t rows = x.dim(0);
  const int64_t columns = x.dim(1);
  for (int64_t i = 0; i < rows * columns; ++i) {
    turned[static_cast<size_t>(i % columns * rows + i / columns)] = all[static_cast<size_t>(i)];
  }
  return turned;
}

inline Exact exact_matmul(const Matmul& args) {
  const int64_t k = args.a.dim(args.transpose_a ? 0 : 1);
  return exact_gemm(matrix(args.a, args.transpose_a), matrix(args.b, !args.transpose_b), k,
                    args.accumulate ? args.d : Tensor(),
                    (4 + std::sqrt(static_cast<double>(k)) / 8) * kFloat32Rounding);
}

// Returns the index in scale_inv of the scale of element (row, i), written from the layout in kernels/fp8/scaling.h.
inline int64_t place_of_scale(const Fp8Operand& operand, int64_t row, int64_t i) {
  const int64_t blocks = (operand.data.dim(1) + 127) / 128;
  if (operand.scaling == Scaling::kRow) return row;
  if (operand.scaling == Scaling::kBlock1x128) return i / 128 * operand.data.dim(0) + row;
  if (operand.scaling == Scaling::kBlock128x128) return row / 128 * ((blocks + 3) / 4 * 4) + i / 128;
  return 0;
}

// Returns the dequantized values of the operand.
inline std::vector<double> dequantized(const Fp8Operand& operand) {
  const int64_t k = operand.data.dim(1);
  std::vector<double> all = elements(operand.data);
  for (int64_t i = 0; i < operand.data.numel(); ++i) {
    all[static_cast<size_t>(i)] *= element(operand.scale_inv, place_of_scale(operand, i / k, i % k));
  }
  return all;
}

inline Exact exact_fp8_matmul(const Fp8Matmul& args) {
  return exact_gemm(dequantized(args.a), dequantized(args.b), args.a.data.dim(1), args.accumulate ? args.d : Tensor(),
                    args.fast_accumulation ? 0x1p-11 : 0x1p-12);
}

}  // namespace octavo

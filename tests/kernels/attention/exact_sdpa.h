// Attention in float64 (kernels/attention/sdpa.h has the formulas), and error bounds for an implementation that rounds
// probabilities and their gradients to bfloat16 before it multiplies them, as tensor cores require. The CPU does not
// round them. For the CPU the bounds have no terms with r, e_i is larger by 16 u, and 16 u takes the place of 4 u.
//
//   |result - exact| <= 1/2 unit in the last place of the result's dtype + slack
//
//   out_i    3 r |p_j v_j|   + sum_j e_i p_j |v_j|
//   lse_i    e_i
//   d_v_j    3 r |p_i do_i|  + sum_i e_i p_i |do_i|                            + r sum of |d_v_j| of the heads
//   d_q_i    3 r |ds_j k_j|  + sum_j (e_i |ds_j| + 4 u c p_j G_ij) |k_j|
//   d_k_j    3 r |ds_i q_i|  + sum_i (e_i |ds_i| + 4 u c p_i G_ij) |q_i|       + r sum of |d_k_j| of the heads
//
// r = 2^-8 is the rounding error of bfloat16, and u = 2^-24 that of float32. |x_j| is the 2-norm over j. The rounding
// errors of many terms are independent, so 3 r times their norm is about 7 standard deviations. With fewer than 9 terms
// it exceeds even the worst case. e_i = 12 u (1 + max_j c sum |q k|) is the error of a score, and therefore the
// relative error of a probability, where c = 1/sqrt(head_dim). G_ij = sum |do_i v_j| + sum |do_i out_i|. The last terms
// of d_k and d_v apply if several query heads share a key/value head, because the gradients may be rounded for each of
// them. The bounds of backward assume that its inputs out and lse are exact.
#pragma once

#include "kernels/attention/sdpa.h"
#include "tests/kernels/exact.h"

namespace octavo {

enum class SdpaArithmetic {
  kTensorCores,  // exact values, and the bounds of tensor cores
  kRounded,      // values for which probabilities and their gradients are rounded to bfloat16
  kCpu,          // exact values, and the bounds of the CPU
};

struct ExactSdpa {
  Exact out, lse, d_qkv;
};

// Computes attention of one query head, forward or backward. The functions read rows of the packed tensors with `load`.
class ExactSdpaHead {
 public:
  ExactSdpaHead(const SdpaShape& shape, const Tensor& qkv, const Documents& documents, int64_t sequence, int64_t head,
                SdpaArithmetic arithmetic)
      : s_(shape),
        rounded_(arithmetic == SdpaArithmetic::kRounded),
        rounding_(arithmetic == SdpaArithmetic::kCpu ? 0 : 0x1p-8),
        scale_(1 / std::sqrt(static_cast<double>(shape.head_dim))),
        first_(static_cast<size_t>(shape.seq_len)) {
    for (const Document& document : documents.list) {
      if (document.begin / s_.seq_len != sequence) continue;
      const int64_t begin = document.begin % s_.seq_len;
      std::fill_n(first_.begin() + begin, document.length, begin);
    }
    const int64_t kv = head / (s_.num_heads / s_.num_kv_heads);
    q_ = load(qkv, sequence, head);
    k_ = load(qkv, sequence, s_.num_heads + kv);
    v_ = load(qkv, sequence, s_.num_heads + s_.num_kv_heads + kv);
  }

  void forward(int64_t sequence, int64_t head, ExactSdpa& exact) const {
    const int64_t d = s_.head_dim;
    std::vector<double> p(static_cast<size_t>(s_.seq_len));
    for (int64_t i = 0; i < s_.seq_len; ++i) {
      const double error = scores(i, p);
      const int64_t first = first_[static_cast<size_t>(i)];
      double max = at(p, first);
      double total = 0;
      for (int64_t j = first; j <= i; ++j) max = std::max(max, at(p, j));
      for (int64_t j = first; j <= i; ++j) total += std::exp(at(p, j) - max);
      // The division by the sum comes after the rounding, as in implementations with tensor cores.
      for (int64_t j = first; j <= i; ++j) at(p, j) = round(std::exp(at(p, j) - max)) / total;
      exact.lse.set((sequence * s_.num_heads + head) * s_.seq_len + i, max + std::log(total), error);
      for (int64_t c = 0; c < d; ++c) {
        Sum sum;
        for (int64_t j = first; j <= i; ++j) sum.add(at(p, j) * at(v_, j * d + c), error);
        const int64_t row = sequence * s_.seq_len + i;
        exact.out.set(row * s_.out_width() + head * d + c, sum.value, sum.slack(rounding_));
      }
    }
  }

  // Sets d_q and adds to d_k and d_v of exact.d_qkv.
  void backward(int64_t sequence, int64_t head, const SdpaBackward& args, ExactSdpa& exact) const {
    const int64_t d = s_.head_dim;
    const int64_t n = s_.seq_len;
    const std::vector<double> d_out = load(args.d_out, sequence, head);
    const std::vector<double> out = load(args.out, sequence, head);
    const double matmul_units = rounding_ == 0 ? 16 : 4;
    std::vector<Sum> d_q(static_cast<size_t>(d));
    std::vector<Sum> d_k(static_cast<size_t>(n * d));
    std::vector<Sum> d_v(static_cast<size_t>(n * d));
    std::vector<double> p(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      const double error = scores(i, p);
      const double lse = element(args.lse, (sequence * s_.num_heads + head) * n + i);
      double delta = 0;
      double delta_magnitude = 0;
      for (int64_t c = 0; c < d; ++c) {
        delta += at(d_out, i * d + c) * at(out, i * d + c);
        delta_magnitude += std::abs(at(d_out, i * d + c) * at(out, i * d + c));
      }
      std::fill(d_q.begin(), d_q.end(), Sum{});
      for (int64_t j = first_[static_cast<size_t>(i)]; j <= i; ++j) {
        const double probability = std::exp(at(p, j) - lse);
        double d_p = 0;
        double magnitude = delta_magnitude;
        for (int64_t c = 0; c < d; ++c) {
          d_p += at(d_out, i * d + c) * at(v_, j * d + c);
          magnitude += std::abs(at(d_out, i * d + c) * at(v_, j * d + c));
        }
        const double ds = round(probability * (d_p - delta)) * scale_;
        const double ds_error =
            error * std::abs(ds) + matmul_units * kFloat32Rounding * scale_ * probability * magnitude;
        for (int64_t c = 0; c < d; ++c) {
          d_q[static_cast<size_t>(c)].add_product(ds, at(k_, j * d + c), ds_error);
          d_k[static_cast<size_t>(j * d + c)].add_product(ds, at(q_, i * d + c), ds_error);
          d_v[static_cast<size_t>(j * d + c)].add_product(round(probability), at(d_out, i * d + c),
                                                          error * probability);
        }
      }
      const int64_t row = (sequence * n + i) * s_.qkv_width();
      for (int64_t c = 0; c < d; ++c) {
        const Sum& sum = d_q[static_cast<size_t>(c)];
        exact.d_qkv.set(row + head * d + c, sum.value, sum.slack(rounding_));
      }
    }
    const bool shared = s_.num_heads > s_.num_kv_heads;
    const int64_t kv = head / (s_.num_heads / s_.num_kv_heads);
    for (int64_t j = 0; j < n; ++j) {
      const int64_t row = (sequence * n + j) * s_.qkv_width();
      for (int64_t c = 0; c < d; ++c) {
        for (const auto& [sums, first] : {std::pair{&d_k, s_.num_heads}, {&d_v, s_.num_heads + s_.num_kv_heads}}) {
          const Sum& sum = (*sums)[static_cast<size_t>(j * d + c)];
          const auto i = static_cast<size_t>(row + (first + kv) * d + c);
          exact.d_qkv.values[i] += sum.value;
          exact.d_qkv.slack[i] += sum.slack(rounding_) + (shared ? rounding_ * std::abs(sum.value) : 0);
        }
      }
    }
  }

 private:
  // A sum of terms that are each rounded to bfloat16, and its error bound.
  struct Sum {
    double value = 0;
    double squares = 0;
    double errors = 0;  // Errors of the float32 arithmetic.

    void add(double term, double relative_error) {
      value += term;
      squares += term * term;
      errors += relative_error * std::abs(term);
    }
    void add_product(double a, double b, double error_of_a) {
      value += a * b;
      squares += a * b * a * b;
      errors += error_of_a * std::abs(b);
    }
    double slack(double rounding) const { return 3 * rounding * std::sqrt(squares) + errors; }
  };

  static double& at(std::vector<double>& x, int64_t i) { return x[static_cast<size_t>(i)]; }
  static double at(const std::vector<double>& x, int64_t i) { return x[static_cast<size_t>(i)]; }

  double round(double x) const {
    return rounded_ ? static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(x)))) : x;
  }

  // Returns the columns of one head in the rows of one sequence.
  std::vector<double> load(const Tensor& x, int64_t sequence, int64_t head) const {
    const int64_t d = s_.head_dim;
    std::vector<double> all(static_cast<size_t>(s_.seq_len * d));
    for (int64_t i = 0; i < s_.seq_len * d; ++i) {
      at(all, i) = element(x, (sequence * s_.seq_len + i / d) * x.dim(1) + head * d + i % d);
    }
    return all;
  }

  // Computes the scores of query i into p and returns e_i.
  double scores(int64_t i, std::vector<double>& p) const {
    const int64_t d = s_.head_dim;
    double largest = 0;
    for (int64_t j = first_[static_cast<size_t>(i)]; j <= i; ++j) {
      double sum = 0;
      double magnitude = 0;
      for (int64_t c = 0; c < d; ++c) {
        sum += at(q_, i * d + c) * at(k_, j * d + c);
        magnitude += std::abs(at(q_, i * d + c) * at(k_, j * d + c));
      }
      at(p, j) = sum * scale_;
      largest = std::max(largest, magnitude * scale_);
    }
    return (12 * (1 + largest) + (rounding_ == 0 ? 16 : 0)) * kFloat32Rounding;
  }

  SdpaShape s_;
  bool rounded_;
  double rounding_;  // r
  double scale_;
  std::vector<int64_t> first_;     // First key that each query may attend to.
  std::vector<double> q_, k_, v_;  // The shapes are [seq_len, head_dim].
};

inline ExactSdpa exact_sdpa_forward(const SdpaShape& s, const Tensor& qkv, const Documents& documents = {},
                                    SdpaArithmetic arithmetic = SdpaArithmetic::kTensorCores) {
  ExactSdpa exact{Exact(s.batch * s.seq_len * s.out_width()), Exact(s.batch * s.num_heads * s.seq_len), Exact(0)};
#pragma omp parallel for
  for (int64_t i = 0; i < s.batch * s.num_heads; ++i) {
    const int64_t head = i % s.num_heads;
    ExactSdpaHead(s, qkv, documents, i / s.num_heads, head, arithmetic).forward(i / s.num_heads, head, exact);
  }
  return exact;
}

inline Exact exact_sdpa_backward(const SdpaBackward& args, SdpaArithmetic arithmetic = SdpaArithmetic::kTensorCores) {
  const SdpaShape& s = args.shape;
  const int64_t group = s.num_heads / s.num_kv_heads;
  ExactSdpa exact{Exact(0), Exact(0), Exact(s.batch * s.seq_len * s.qkv_width())};
#pragma omp parallel for
  for (int64_t i = 0; i < s.batch * s.num_kv_heads; ++i) {
    const int64_t sequence = i / s.num_kv_heads;
    for (int64_t h = 0; h < group; ++h) {
      const int64_t head = i % s.num_kv_heads * group + h;
      ExactSdpaHead(s, args.qkv, args.documents, sequence, head, arithmetic).backward(sequence, head, args, exact);
    }
  }
  return exact.d_qkv;
}

}  // namespace octavo

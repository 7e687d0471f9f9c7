#include "kernels/attention/qk_norm_rope.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/profiler.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/fp8/fp8_cast.h"
#include "kernels/math/cpu_math.h"

namespace octavo {

namespace {

// Checks the shapes that forward and backward have in common. `result` is out or d_qkv.
template <typename Args>
void check_shapes(const Args& args, const Tensor& result) {
  const int64_t head_dim = args.table.dim(1);
  const int64_t width = (args.num_heads + 2 * args.num_kv_heads) * head_dim;
  const DType compute = args.qkv.dtype();
  CHECK(head_dim % 2 == 0, "qk_norm_rope: head_dim is {}, expected an even number", head_dim);
  expect_tensor(args.table, "qk_norm_rope table", DType::kFloat32, {args.table.dim(0), head_dim});
  expect_tensor(args.qkv, "qk_norm_rope qkv", compute, {args.qkv.dim(0), width});
  expect_tensor(result, "qk_norm_rope result", compute, {args.qkv.dim(0), width});
  expect_tensor(args.q_weight, "qk_norm_rope q_weight", compute, {head_dim});
  expect_tensor(args.k_weight, "qk_norm_rope k_weight", compute, {head_dim});
  CHECK(args.qkv.dim(0) % args.table.dim(0) == 0, "qk_norm_rope: {} tokens are not whole sequences of {}",
        args.qkv.dim(0), args.table.dim(0));
}

// Returns the bytes that backward moves. It reads the gradients and inputs of the rotated heads and writes the
// gradients. An amax also reads the value heads. A cast reads the whole result once more.
double backward_bytes(const QkNormRopeBackward& args) {
  const auto all = static_cast<double>(args.d_qkv.bytes());
  const auto heads = static_cast<double>(args.num_heads + 2 * args.num_kv_heads);
  const double values = all * static_cast<double>(args.num_kv_heads) / heads;
  const double bytes = 3 * (all - values) + (args.amax.defined() ? values : 0);
  return args.cast.defined() ? bytes + all + result_bytes(args.cast, args.d_qkv) : bytes;
}

}  // namespace

namespace cpu {

template <typename T>
float rstd_of(const T* x, int64_t head_dim, float eps) {
  double squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < head_dim; ++i)
    squares += static_cast<double>(static_cast<float>(x[i]) * static_cast<float>(x[i]));
  return 1.0f / std::sqrt(static_cast<float>(squares / static_cast<double>(head_dim)) + eps);
}

template <typename T>
void qk_norm_rope_forward(const QkNormRopeForward& args) {
  const int64_t tokens = args.qkv.dim(0);
  const int64_t width = args.qkv.dim(1);
  const int64_t seq_len = args.table.dim(0);
  const int64_t head_dim = args.table.dim(1);
  const int64_t half = head_dim / 2;
  const int64_t rotated_heads = args.num_heads + args.num_kv_heads;
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t) {
    const float* cos = args.table.data<float>() + (t % seq_len) * head_dim;
    const float* sin = cos + half;
    const T* row = args.qkv.data<T>() + t * width;
    T* out_row = args.out.data<T>() + t * width;
    for (int64_t head = 0; head < rotated_heads; ++head) {
      const T* weight = (head < args.num_heads ? args.q_weight : args.k_weight).data<T>();
      const T* x = row + head * head_dim;
      T* out = out_row + head * head_dim;
      const float rstd = rstd_of(x, head_dim, args.eps);
#pragma omp simd
      for (int64_t i = 0; i < half; ++i) {
        const float a = static_cast<float>(x[i]) * rstd * static_cast<float>(weight[i]);
        const float b = static_cast<float>(x[half + i]) * rstd * static_cast<float>(weight[half + i]);
        out[i] = T(a * cos[i] - b * sin[i]);
        out[half + i] = T(b * cos[i] + a * sin[i]);
      }
    }
    if (out_row != row) std::copy(row + rotated_heads * head_dim, row + width, out_row + rotated_heads * head_dim);
  }
}

// Number of slices that the tokens are divided into. The gradients of the weights are summed per slice, and these sums
// are added in order, so the result does not depend on the number of threads.
constexpr int64_t kNormSlices = 32;

// Processes one head of one token. On entry d [head_dim] is the gradient of the head's output, on return it is the
// gradient of x. Adds the head's term to d_weight.
template <typename T>
void norm_backward_head(T* d, const T* x, const T* weight, const float* cos, int64_t head_dim, float eps,
                        float* d_weight) {
  const int64_t half = head_dim / 2;
  const float* sin = cos + half;
  const float rstd = rstd_of(x, head_dim, eps);
  const auto turned_low = [&](int64_t i) {
    return static_cast<float>(d[i]) * cos[i] + static_cast<float>(d[half + i]) * sin[i];
  };
  const auto turned_high = [&](int64_t i) {
    return static_cast<float>(d[half + i]) * cos[i] - static_cast<float>(d[i]) * sin[i];
  };
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < half; ++i) {
    const float low = turned_low(i) * static_cast<float>(x[i]);
    const float high = turned_high(i) * static_cast<float>(x[half + i]);
    d_weight[i] += low * rstd;
    d_weight[half + i] += high * rstd;
    dot += low * static_cast<float>(weight[i]) + high * static_cast<float>(weight[half + i]);
  }
  const float projection = rstd * rstd * dot / static_cast<float>(head_dim);
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const float low = turned_low(i) * static_cast<float>(weight[i]);
    const float high = turned_high(i) * static_cast<float>(weight[half + i]);
    d[i] = T(rstd * (low - static_cast<float>(x[i]) * projection));
    d[half + i] = T(rstd * (high - static_cast<float>(x[half + i]) * projection));
  }
}

// `partial` [kNormSlices, 2, head_dim] holds the sums for q_weight and k_weight.
template <typename T>
void qk_norm_rope_backward(const QkNormRopeBackward& args, float* partial) {
  const int64_t tokens = args.qkv.dim(0);
  const int64_t width = args.qkv.dim(1);
  const int64_t seq_len = args.table.dim(0);
  const int64_t head_dim = args.table.dim(1);
#pragma omp parallel for
  for (int64_t s = 0; s < kNormSlices; ++s) {
    float* sums = partial + s * 2 * head_dim;
    std::fill_n(sums, 2 * head_dim, 0.0f);
    for (int64_t t = tokens * s / kNormSlices; t < tokens * (s + 1) / kNormSlices; ++t) {
      const float* cos = args.table.data<float>() + (t % seq_len) * head_dim;
      for (int64_t head = 0; head < args.num_heads + args.num_kv_heads; ++head) {
        const bool is_q = head < args.num_heads;
        const int64_t at = t * width + head * head_dim;
        norm_backward_head(args.d_qkv.data<T>() + at, args.qkv.data<T>() + at,
                           (is_q ? args.q_weight : args.k_weight).data<T>(), cos, head_dim, args.eps,
                           sums + (is_q ? 0 : head_dim));
      }
    }
  }
  float* d_q_weight = args.d_q_weight.data<float>();
  float* d_k_weight = args.d_k_weight.data<float>();
  for (int64_t s = 0; s < kNormSlices; ++s) {
    const float* sums = partial + s * 2 * head_dim;
    for (int64_t i = 0; i < head_dim; ++i) d_q_weight[i] += sums[i];
    for (int64_t i = 0; i < head_dim; ++i) d_k_weight[i] += sums[head_dim + i];
  }
}

}  // namespace cpu

void qk_norm_rope_forward(const QkNormRopeForward& args, Stream& stream) {
  check_shapes(args, args.out);
  const OpTimer timer(stream, "qk_norm_rope_forward", 2 * args.qkv.bytes());
  if (ran_elsewhere<cuda::qk_norm_rope_forward>(args, stream)) return;
  cpu::with_compute_dtype(args.qkv.dtype(), [&]<typename T>() { cpu::qk_norm_rope_forward<T>(args); });
}

void qk_norm_rope_backward(const QkNormRopeBackward& args, Stream& stream) {
  const int64_t head_dim = args.table.dim(1);
  check_shapes(args, args.d_qkv);
  expect_tensor(args.d_q_weight, "qk_norm_rope d_q_weight", DType::kFloat32, {head_dim});
  expect_tensor(args.d_k_weight, "qk_norm_rope d_k_weight", DType::kFloat32, {head_dim});
  if (args.amax.defined()) expect_tensor(args.amax, "qk_norm_rope amax", DType::kFloat32, {1});
  check_cast(args.cast, CastOf::kGradient, "qk_norm_rope_backward", args.d_qkv, stream);
  const OpTimer timer(stream,
                      {.name = "qk_norm_rope_backward", .bytes = backward_bytes(args), .casts = args.cast.defined()});
  if (ran_elsewhere<cuda::qk_norm_rope_backward>(args, stream)) return;
  auto* partial = static_cast<float*>(stream.workspace(qk_norm_rope_backward_workspace_bytes(head_dim, stream)));
  cpu::with_compute_dtype(args.qkv.dtype(), [&]<typename T>() {
    cpu::qk_norm_rope_backward<T>(args, partial);
    cpu::update_amax<T>(args.amax, args.d_qkv);
  });
  cpu::cast_result(args.cast, args.d_qkv);
}

int64_t qk_norm_rope_backward_workspace_bytes(int64_t head_dim, const Stream& stream) {
  const int64_t rows =
      stream.is_cuda() ? stream.multiprocessors() * cuda::kQkNormRopeBlocksPerMultiprocessor : cpu::kNormSlices;
  return rows * 2 * head_dim * dtype_bytes(DType::kFloat32);
}

}  // namespace octavo

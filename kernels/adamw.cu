#include <cmath>

#include "core/cuda_amax.cuh"
#include "core/cuda_flat.cuh"
#include "kernels/adamw.h"

namespace octavo::cuda {

namespace {

constexpr int kPerThread = 8;

// The pointers and the constants of a step, all that is left once the host has worked out the bias corrections.
template <typename Moment>
struct AdamwStep {
  float* master;
  Moment* exp_avg;
  Moment* exp_avg_sq;
  const float* grad;
  __nv_bfloat16* weight;  // may be null
  float* amax;            // may be null
  const float* grad_sum_of_squares;
  const float* skip;  // may be null
  int64_t n;
  float lr;
  float beta1;
  float beta2;
  float eps;
  float weight_decay;
  float grad_clip;
  float m_scale;  // 1 / (1 - beta1^step)
  float v_scale;
};

template <typename Moment>
__device__ float clip_factor(const AdamwStep<Moment>& step) {
  if (step.grad_clip <= 0) return 1.0f;
  const float factor = step.grad_clip / (sqrtf(*step.grad_sum_of_squares) + 1e-6f);
  return factor > 1.0f ? 1.0f : factor;  // a NaN norm stays NaN and shows
}

// Updates elements i to i + M - 1 and adds what they become to `largest`.
template <int M, typename Moment>
__device__ void adamw_update(const AdamwStep<Moment>& step, float clip, int64_t i, Magnitude<float>& largest) {
  float grad[M];
  float master[M];
  float m[M];
  float v[M];
  load_floats(step.grad + i, grad);
  load_floats(step.master + i, master);
  load_floats(step.exp_avg + i, m);
  load_floats(step.exp_avg_sq + i, v);
#pragma unroll
  for (int j = 0; j < M; ++j) {
    const float g = clip * grad[j];
    m[j] = step.beta1 * m[j] + (1.0f - step.beta1) * g;
    v[j] = step.beta2 * v[j] + (1.0f - step.beta2) * g * g;
    const float update = m[j] * step.m_scale / (sqrtf(v[j] * step.v_scale) + step.eps) + step.weight_decay * master[j];
    master[j] -= step.lr * update;
    largest.add_word(__float_as_uint(master[j]));
  }
  store_floats(step.master + i, master);
  store_floats(step.exp_avg + i, m);
  store_floats(step.exp_avg_sq + i, v);
  if (step.weight != nullptr) store_floats(step.weight + i, master);
}

// Adds elements i to i + M - 1 as they are to `largest`.
template <int M, typename Moment>
__device__ void measure(const AdamwStep<Moment>& step, int64_t i, Magnitude<float>& largest) {
  float master[M];
  load_floats(step.master + i, master);
#pragma unroll
  for (int j = 0; j < M; ++j) largest.add_word(__float_as_uint(master[j]));
}

template <int M, typename Moment>
__global__ void __launch_bounds__(kFlatThreads) adamw_kernel(const AdamwStep<Moment> step, int64_t head) {
  Magnitude<float> largest;
  if (step.skip != nullptr && *step.skip != 0) {
    if (step.amax == nullptr) return;
    for_flat_elements<M>(head, step.n, [&]<int kCount>(int64_t i) { measure<kCount>(step, i, largest); });
  } else {
    const float clip = clip_factor(step);
    for_flat_elements<M>(head, step.n, [&]<int kCount>(int64_t i) { adamw_update<kCount>(step, clip, i, largest); });
  }
  if (step.amax != nullptr) update_amax(step.amax, largest.float_bits());
}

template <typename Moment>
void adamw_moments(const Adamw& args, Stream& stream) {
  const AdamwOptions& o = args.options;
  const auto correction = [&](float beta) {
    return static_cast<float>(1.0 / (1.0 - std::pow(static_cast<double>(beta), static_cast<double>(o.step))));
  };
  const AdamwStep<Moment> step{.master = pointer<float>(args.master),
                               .exp_avg = pointer<Moment>(args.exp_avg),
                               .exp_avg_sq = pointer<Moment>(args.exp_avg_sq),
                               .grad = pointer<const float>(args.grad),
                               .weight = pointer<__nv_bfloat16>(args.weight),
                               .amax = pointer<float>(args.amax),
                               .grad_sum_of_squares = pointer<const float>(args.grad_sum_of_squares),
                               .skip = pointer<const float>(args.skip),
                               .n = args.master.numel(),
                               .lr = o.lr,
                               .beta1 = o.beta1,
                               .beta2 = o.beta2,
                               .eps = o.eps,
                               .weight_decay = o.weight_decay,
                               .grad_clip = o.grad_clip,
                               .m_scale = correction(o.beta1),
                               .v_scale = correction(o.beta2)};
  const FlatShape shape =
      flat_shape<kPerThread>(step.n, step.master, step.exp_avg, step.exp_avg_sq, step.grad, step.weight);
  auto* kernel = shape.aligned ? adamw_kernel<kPerThread, Moment> : adamw_kernel<1, Moment>;
  launch("adamw", kernel, shape.launch, stream, step, shape.head);
}

}  // namespace

void adamw(const Adamw& args, Stream& stream) {
  with_element(args.exp_avg.dtype(), [&]<typename Moment>() { adamw_moments<Moment>(args, stream); });
}

}  // namespace octavo::cuda

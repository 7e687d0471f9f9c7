#include "kernels/cuda/amax.cuh"
#include "kernels/cuda/flat.cuh"
#include "kernels/math/rounded_math.cuh"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/adamw_float8.h"
#include "kernels/optimizer/cuda_optimizer.cuh"

namespace octavo::cuda {

namespace {

constexpr int kPerThread = 8;

// The arguments of the kernel. First and Second are the types of the moments: both float or __nv_bfloat16, or uint8_t
// for e4m3 codes and uint16_t for the bits of bfloat16.
template <typename First, typename Second>
struct AdamwStep {
  float* master;
  First* exp_avg;
  Second* exp_avg_sq;
  const float* grad;
  __nv_bfloat16* weight;  // may be null
  float* amax;            // may be null
  const float* grad_sum_of_squares;
  const float* skip;  // may be null
  int64_t n;
  AdamwOptions options;
  AdamwScales scales;
  uint64_t random_key;
  MatrixRange range;
};

// M adjacent elements that are loaded and stored at once. Their address is a multiple of their size.
template <typename T, int M>
struct alignas(M * sizeof(T)) Packed {
  T values[M];

  __device__ explicit Packed(const T* p) { *this = *reinterpret_cast<const Packed*>(p); }
  __device__ void store(T* p) const { *reinterpret_cast<Packed*>(p) = *this; }
};

// Updates elements i to i + M - 1 and includes the new weights in the maximum `largest`.
template <int M, typename Moment>
__device__ void adamw_update(const AdamwStep<Moment, Moment>& step, float clip, int64_t i, Magnitude<float>& largest) {
  const AdamwOptions& o = step.options;
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
    m[j] = o.beta1 * m[j] + (1.0f - o.beta1) * g;
    v[j] = o.beta2 * v[j] + (1.0f - o.beta2) * g * g;
    const float update = m[j] * step.scales.m / (sqrtf(v[j] * step.scales.v) + o.eps) + o.weight_decay * master[j];
    master[j] -= o.lr * update;
    largest.add_word(__float_as_uint(master[j]));
  }
  store_floats(step.master + i, master);
  store_floats(step.exp_avg + i, m);
  store_floats(step.exp_avg_sq + i, v);
  if (step.weight != nullptr) store_floats(step.weight + i, master);
}

template <int M>
__device__ void adamw_update(const AdamwStep<uint8_t, uint16_t>& step, float clip, int64_t i,
                             Magnitude<float>& largest) {
  float grad[M];
  float master[M];
  Packed<uint8_t, M> exp_avg(step.exp_avg + i);
  Packed<uint16_t, M> exp_avg_sq(step.exp_avg_sq + i);
  load_floats(step.grad + i, grad);
  load_floats(step.master + i, master);
  uint64_t index[M];
  step.range.indices(i, index);
#pragma unroll
  for (int j = 0; j < M; ++j) {
    const uint32_t random = moment_bits(step.random_key, index[j]);
    adamw_with_codes<RoundedMath>(step.options, step.scales, RoundedMath::multiply(clip, grad[j]), random, master[j],
                                  exp_avg.values[j], exp_avg_sq.values[j]);
    largest.add_word(__float_as_uint(master[j]));
  }
  store_floats(step.master + i, master);
  exp_avg.store(step.exp_avg + i);
  exp_avg_sq.store(step.exp_avg_sq + i);
  if (step.weight != nullptr) store_floats(step.weight + i, master);
}

// Includes weights i to i + M - 1 in the maximum `largest` without updating them.
template <int M, typename First, typename Second>
__device__ void measure(const AdamwStep<First, Second>& step, int64_t i, Magnitude<float>& largest) {
  float master[M];
  load_floats(step.master + i, master);
#pragma unroll
  for (int j = 0; j < M; ++j) largest.add_word(__float_as_uint(master[j]));
}

template <int M, typename First, typename Second>
__global__ void __launch_bounds__(kFlatThreads) adamw_kernel(const AdamwStep<First, Second> step, int64_t head) {
  Magnitude<float> largest;
  if (skips(step.skip)) {
    if (step.amax == nullptr) return;
    for_flat_elements<M>(head, step.n, [&]<int kCount>(int64_t i) { measure<kCount>(step, i, largest); });
  } else {
    const float clip = clip_factor(step.options.grad_clip, step.grad_sum_of_squares);
    for_flat_elements<M>(head, step.n, [&]<int kCount>(int64_t i) { adamw_update<kCount>(step, clip, i, largest); });
  }
  if (step.amax != nullptr) update_amax(step.amax, largest.float_bits());
}

template <typename First, typename Second>
void adamw_moments(const Adamw& args, Stream& stream) {
  const AdamwStep<First, Second> step{.master = pointer<float>(args.master),
                                      .exp_avg = pointer<First>(args.exp_avg),
                                      .exp_avg_sq = pointer<Second>(args.exp_avg_sq),
                                      .grad = pointer<const float>(args.grad),
                                      .weight = pointer<__nv_bfloat16>(args.weight),
                                      .amax = pointer<float>(args.amax),
                                      .grad_sum_of_squares = pointer<const float>(args.grad_sum_of_squares),
                                      .skip = pointer<const float>(args.skip),
                                      .n = args.master.numel(),
                                      .options = args.options,
                                      .scales = AdamwScales(args.options),
                                      .random_key = args.random_key,
                                      .range = args.range};
  const FlatShape shape =
      flat_shape<kPerThread>(step.n, step.master, step.exp_avg, step.exp_avg_sq, step.grad, step.weight);
  auto* kernel = shape.aligned ? adamw_kernel<kPerThread, First, Second> : adamw_kernel<1, First, Second>;
  launch("adamw", kernel, shape.launch, stream, step, shape.head);
}

}  // namespace

void adamw(const Adamw& args, Stream& stream) {
  if (args.exp_avg.dtype() == DType::kFloat8E4M3) return adamw_moments<uint8_t, uint16_t>(args, stream);
  with_element(args.exp_avg.dtype(), [&]<typename Moment>() { adamw_moments<Moment, Moment>(args, stream); });
}

}  // namespace octavo::cuda

#include <cmath>

#include "kernels/cuda/amax.cuh"
#include "kernels/cuda/flat.cuh"
#include "kernels/optimizer/cuda_optimizer.cuh"
#include "kernels/optimizer/muon.h"
#include "kernels/optimizer/newton_schulz.h"

namespace octavo::cuda {

namespace {

constexpr int kPerThread = 8;

template <typename Momentum, typename Update>
struct MomentumOp {
  Momentum* momentum;
  Update* update;
  const float* grad;
  const float* grad_sum_of_squares;
  const float* skip;  // may be null
  float decay;
  float grad_clip;

  template <int M>
  __device__ void operator()(int64_t i) const {
    float u[M] = {};
    if (skips(skip)) {
      store_floats(update + i, u);
      return;
    }
    const float clip = clip_factor(grad_clip, grad_sum_of_squares);
    float m[M];
    float g[M];
    load_floats(momentum + i, m);
    load_floats(grad + i, g);
#pragma unroll
    for (int j = 0; j < M; ++j) {
      g[j] *= clip;
      m[j] = decay * m[j] + g[j];
      u[j] = g[j] + decay * m[j];
    }
    store_floats(momentum + i, m);
    store_floats(update + i, u);
  }
};

constexpr int kRowThreads = 256;

// A block computes one row.
template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    rows_kernel(T* out, const T* x, int64_t columns, int64_t out_stride, int64_t x_stride, const float* squares) {
  const float scale = squares != nullptr ? 1.0f / (sqrtf(*squares) + kNewtonSchulzEps) : 1.0f;
  const auto row = static_cast<int64_t>(blockIdx.x);
  for (int64_t c = threadIdx.x; c < columns; c += kRowThreads) {
    out[row * out_stride + c] = from_float<T>(scale * to_float(x[row * x_stride + c]));
  }
}

template <typename T>
struct PolynomialOp {
  T* gram;
  const float* square;
  int64_t n;

  template <int M>
  __device__ void operator()(int64_t i) const {
    float a[M];
    float s[M];
    load_floats(gram + i, a);
    load_floats(square + i, s);
    const int64_t place = i % (n + 1);  // offset from an element of the diagonal
#pragma unroll
    for (int j = 0; j < M; ++j) {
      const bool diagonal = (place + j) % (n + 1) == 0;
      a[j] = (diagonal ? kNewtonSchulzA : 0.0f) + kNewtonSchulzB * a[j] + kNewtonSchulzC * s[j];
    }
    store_floats(gram + i, a);
  }
};

template <typename Update>
struct UpdateStep {
  float* master;
  const Update* update;
  __nv_bfloat16* weight;  // null: not written
  float* amax;            // null: not computed
  const float* skip;      // null: the update is never skipped
  int64_t n;
  float lr;
  float weight_decay;
  float scale;
};

template <int M, typename Update>
__device__ void update_elements(const UpdateStep<Update>& step, bool skipped, int64_t i, Magnitude<float>& largest) {
  float master[M];
  load_floats(step.master + i, master);
  if (!skipped) {
    float update[M];
    load_floats(step.update + i, update);
#pragma unroll
    for (int j = 0; j < M; ++j) master[j] -= step.lr * (step.scale * update[j] + step.weight_decay * master[j]);
    store_floats(step.master + i, master);
    if (step.weight != nullptr) store_floats(step.weight + i, master);
  }
#pragma unroll
  for (int j = 0; j < M; ++j) largest.add_word(__float_as_uint(master[j]));
}

template <int M, typename Update>
__global__ void __launch_bounds__(kFlatThreads) update_kernel(const UpdateStep<Update> step, int64_t head) {
  Magnitude<float> largest;
  const bool skipped = skips(step.skip);
  if (skipped && step.amax == nullptr) return;
  for_flat_elements<M>(head, step.n,
                       [&]<int kCount>(int64_t i) { update_elements<kCount>(step, skipped, i, largest); });
  if (step.amax != nullptr) update_amax(step.amax, largest.float_bits());
}

}  // namespace

void muon_momentum(const MuonMomentum& args, Stream& stream) {
  with_element(args.momentum.dtype(), [&]<typename Momentum>() {
    with_element(args.update.dtype(), [&]<typename Update>() {
      const MomentumOp<Momentum, Update> op{.momentum = pointer<Momentum>(args.momentum),
                                            .update = pointer<Update>(args.update),
                                            .grad = pointer<const float>(args.grad),
                                            .grad_sum_of_squares = pointer<const float>(args.grad_sum_of_squares),
                                            .skip = pointer<const float>(args.skip),
                                            .decay = args.decay,
                                            .grad_clip = args.grad_clip};
      launch_flat<kPerThread>("muon_momentum", op, args.grad.numel(), stream, op.momentum, op.update, op.grad);
    });
  });
}

void muon_rows(const MuonRows& args, Stream& stream) {
  if (args.rows == 0 || args.columns == 0) return;
  with_element(args.x.dtype(), [&]<typename T>() {
    launch("muon_rows", rows_kernel<T>, {grid_dim(args.rows), kRowThreads}, stream, pointer<T>(args.out),
           pointer<const T>(args.x), args.columns, args.out_stride, args.x_stride,
           pointer<const float>(args.sum_of_squares));
  });
}

void muon_polynomial(const MuonPolynomial& args, Stream& stream) {
  with_element(args.gram.dtype(), [&]<typename T>() {
    const PolynomialOp<T> op{pointer<T>(args.gram), pointer<const float>(args.square), args.gram.dim(0)};
    launch_flat<kPerThread>("muon_polynomial", op, args.gram.numel(), stream, op.gram, op.square);
  });
}

void muon_update(const MuonUpdate& args, Stream& stream) {
  with_element(args.update.dtype(), [&]<typename Update>() {
    const UpdateStep<Update> step{.master = pointer<float>(args.master),
                                  .update = pointer<const Update>(args.update),
                                  .weight = pointer<__nv_bfloat16>(args.weight),
                                  .amax = pointer<float>(args.amax),
                                  .skip = pointer<const float>(args.skip),
                                  .n = args.master.numel(),
                                  .lr = args.lr,
                                  .weight_decay = args.weight_decay,
                                  .scale = args.scale};
    const FlatShape shape = flat_shape<kPerThread>(step.n, step.master, step.update, step.weight);
    auto* kernel = shape.aligned ? update_kernel<kPerThread, Update> : update_kernel<1, Update>;
    launch("muon_update", kernel, shape.launch, stream, step, shape.head);
  });
}

}  // namespace octavo::cuda

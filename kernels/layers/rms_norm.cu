#include <cuda_pipeline_primitives.h>

#include <algorithm>

#include "kernels/cuda/amax.cuh"
#include "kernels/fp8/fp8_cast.cuh"
#include "kernels/layers/layers_cuda.h"
#include "kernels/math/add_partials.cuh"

namespace octavo::cuda {

namespace {

constexpr int kMaxThreads = 1024;
constexpr int kRowThreads = 256;  // threads per block of the kernels for any shape

template <typename T>
struct ForwardArguments {
  T* out;  // null if the result is cast instead; kernels with kAmax compute its amax even then
  float* rstd;
  T* residual_out;
  const T* x;
  const T* residual;  // may be null
  const T* weight;
  float* amax;  // used by kernels with kAmax
  int64_t hidden;
  float eps;
};

template <typename T>
struct BackwardArguments {
  T* d_h;
  float* partial;  // = [blocks, hidden], the sums of d_weight over the rows of each block
  const T* d_out;
  const T* d_residual;  // may be null
  const T* h;
  const float* rstd;
  const T* weight;
  float* amax;  // used by kernels with kAmax
  int64_t tokens;
  int64_t hidden;
};

template <typename T>
__device__ float rounded(float x) {
  return to_float(from_float<T>(x));
}

// ---- Forward

// A block computes one row and keeps the row in registers, K vectors per thread.
template <typename T, int K, bool kAmax>
__global__ void __launch_bounds__(kMaxThreads) forward_kernel(const ForwardArguments<T> args) {
  constexpr int N = kVector<T>;
  __shared__ float scratch[32];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * args.hidden;
  const int vectors = static_cast<int>(args.hidden / N);
  Vec<T> h[K];
  Vec<T> weight[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int i = static_cast<int>(threadIdx.x + k * blockDim.x);
    if (i < vectors) h[k] = Vec<T>::load(args.x + row + i * N);
  }
  if (args.residual != nullptr) {
    Vec<T> residual[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = static_cast<int>(threadIdx.x + k * blockDim.x);
      if (i < vectors) residual[k] = Vec<T>::load(args.residual + row + i * N);
    }
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = static_cast<int>(threadIdx.x + k * blockDim.x);
      if (i >= vectors) break;
      float a[N];
      float b[N];
      h[k].widen(a);
      residual[k].widen(b);
#pragma unroll
      for (int j = 0; j < N; ++j) a[j] += b[j];
      h[k] = Vec<T>::narrow(a);
      h[k].store(args.residual_out + row + i * N);
    }
  }
  float squares = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int i = static_cast<int>(threadIdx.x + k * blockDim.x);
    if (i >= vectors) break;
    weight[k] = Vec<T>::load(args.weight + i * N);
    float a[N];
    h[k].widen(a);
#pragma unroll
    for (int j = 0; j < N; ++j) squares += a[j] * a[j];
  }
  squares = block_reduce(squares, 0.0f, Add{}, scratch);
  const float rstd = rsqrtf(squares / static_cast<float>(args.hidden) + args.eps);
  if (threadIdx.x == 0) args.rstd[blockIdx.x] = rstd;
  if (!kAmax && args.out == nullptr) return;
  Magnitude<T> largest;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int i = static_cast<int>(threadIdx.x + k * blockDim.x);
    if (i >= vectors) break;
    float a[N];
    float w[N];
    h[k].widen(a);
    weight[k].widen(w);
#pragma unroll
    for (int j = 0; j < N; ++j) a[j] = a[j] * rstd * w[j];
    const auto out = Vec<T>::narrow(a);
    if (args.out != nullptr) out.store(args.out + row + i * N);
    largest.add(out);
  }
  if constexpr (kAmax) update_amax(args.amax, largest.float_bits());
}

// A block computes one row of any size and alignment, and reads it twice.
template <typename T, bool kAmax>
__global__ void __launch_bounds__(kRowThreads) forward_any_kernel(const ForwardArguments<T> args) {
  __shared__ float scratch[32];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * args.hidden;
  const T* h = (args.residual == nullptr ? args.x : args.residual_out) + row;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < args.hidden; i += kRowThreads) {
    float value = to_float(args.x[row + i]);
    if (args.residual != nullptr) {
      value = rounded<T>(value + to_float(args.residual[row + i]));
      args.residual_out[row + i] = from_float<T>(value);
    }
    squares += value * value;
  }
  squares = block_reduce(squares, 0.0f, Add{}, scratch);
  const float rstd = rsqrtf(squares / static_cast<float>(args.hidden) + args.eps);
  if (threadIdx.x == 0) args.rstd[blockIdx.x] = rstd;
  if (!kAmax && args.out == nullptr) return;
  Magnitude<T> largest;
  for (int64_t i = threadIdx.x; i < args.hidden; i += kRowThreads) {
    const Vec<T, 1> out{from_float<T>(to_float(h[i]) * rstd * to_float(args.weight[i]))};
    if (args.out != nullptr) out.store(args.out + row + i);
    largest.add(out);
  }
  if constexpr (kAmax) update_amax(args.amax, largest.float_bits());
}

// Computes `out` from h and rstd.
struct NormedSource {
  using Element = __nv_bfloat16;
  static constexpr int kParts = 1;
  static constexpr int kMinBlocks = 3;
  const Element* h;
  const float* rstd;
  const Element* weight;

  __device__ void make(ThreadTile<Element> (&parts)[kParts], int64_t m, int64_t n, const ThreadPosition& at) const {
    constexpr int N = kVector<Element>;
    ThreadTile<Element>& thread_tile = parts[0];
    thread_tile = load_thread_tile(h, m, n, n, at);
    const int64_t row = at.row + at.thread_row * kThreadTile;
    const int64_t column = at.column + at.thread_column * kThreadTile;
#pragma unroll
    for (int v = 0; v < ThreadTile<Element>::kVectors; ++v) {
      const int64_t i = column + v * N;
      float w[N];
      load_some(weight + i, n - i).widen(w);
#pragma unroll
      for (int r = 0; r < kThreadTile; ++r) {
        if (row + r >= m) break;  // rows outside the matrix stay zero, even if the weights are not finite
        const float scale = rstd[row + r];
        float a[N];
        thread_tile.rows[r][v].widen(a);
#pragma unroll
        for (int j = 0; j < N; ++j) a[j] = a[j] * scale * w[j];
        thread_tile.rows[r][v] = Vec<Element>::narrow(a);
      }
    }
  }
};

// ---- Backward

// A block iterates over rows and keeps the weights and its sums of d_weight in registers, with K vectors per thread.
// Shared memory has kStages rows of d_out, h and d_residual: the current row and rows that are being loaded. A thread
// loads only the elements that it uses, so threads synchronize only for the sum over a row.
constexpr int kStreams = 3;  // d_out, h, d_residual
constexpr int64_t kSharedBytesPerMultiprocessor = 200 * 1024;
constexpr int backward_threads(int k) { return k == 1 ? 128 : 512; }

template <typename T>
int64_t stage_bytes(int64_t hidden) {
  return kStreams * hidden * static_cast<int64_t>(sizeof(T));
}

template <typename T, int K>
__device__ void fetch_row(const BackwardArguments<T>& args, T* stage, int64_t row) {
  constexpr int N = kVector<T>;
  const int vectors = static_cast<int>(args.hidden / N);
  if (row < args.tokens) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = static_cast<int>(threadIdx.x + k * blockDim.x);
      if (i >= vectors) break;
      const int64_t at = row * args.hidden + i * N;
      __pipeline_memcpy_async(stage + i * N, args.d_out + at, 16);
      __pipeline_memcpy_async(stage + args.hidden + i * N, args.h + at, 16);
      if (args.d_residual != nullptr) {
        __pipeline_memcpy_async(stage + 2 * args.hidden + i * N, args.d_residual + at, 16);
      }
    }
  }
  __pipeline_commit();  // even if there is no row to load, so that the number of commits in flight is always the same
}

template <typename T, int K, int kStages, bool kAmax>
__global__ void __launch_bounds__(backward_threads(K)) backward_kernel(const BackwardArguments<T> args) {
  constexpr int N = kVector<T>;
  extern __shared__ uint4 shared[];
  __shared__ float scratch[2][32];
  const int vectors = static_cast<int>(args.hidden / N);
  T* stages = reinterpret_cast<T*>(shared);
  float d_weight[K][N] = {};
  Vec<T> weight[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int i = static_cast<int>(threadIdx.x + k * blockDim.x);
    if (i < vectors) weight[k] = Vec<T>::load(args.weight + i * N);
  }

  const auto stage_at = [&](int i) { return stages + static_cast<int64_t>(i) * kStreams * args.hidden; };
  for (int i = 0; i < kStages - 1; ++i) {
    fetch_row<T, K>(args, stage_at(i), blockIdx.x + static_cast<int64_t>(i) * gridDim.x);
  }
  float next_rstd = args.rstd[blockIdx.x];  // loaded one row ahead, so that no row waits for it
  Magnitude<T> largest;
  int current = 0;
  int turn = 0;
  for (int64_t row = blockIdx.x; row < args.tokens; row += gridDim.x, turn ^= 1) {
    const int last = current == 0 ? kStages - 1 : current - 1;  // stage of the previous row
    fetch_row<T, K>(args, stage_at(last), row + static_cast<int64_t>(kStages - 1) * gridDim.x);
    const float rstd = next_rstd;
    next_rstd = row + gridDim.x < args.tokens ? args.rstd[row + gridDim.x] : 0.0f;
    __pipeline_wait_prior(kStages - 1);
    const T* stage = stage_at(current);
    current = current == kStages - 1 ? 0 : current + 1;

    float dot = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = static_cast<int>(threadIdx.x + k * blockDim.x);
      if (i >= vectors) break;
      float d[N];
      float h[N];
      float w[N];
      Vec<T>::load(stage + i * N).widen(d);
      Vec<T>::load(stage + args.hidden + i * N).widen(h);
      weight[k].widen(w);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        dot += d[j] * w[j] * h[j];
        d_weight[k][j] += d[j] * h[j] * rstd;
      }
    }
    dot = block_reduce(dot, 0.0f, Add{}, scratch[turn]);
    const float projection = rstd * rstd * dot / static_cast<float>(args.hidden);

#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int i = static_cast<int>(threadIdx.x + k * blockDim.x);
      if (i >= vectors) break;
      float d[N];
      float h[N];
      float w[N];
      float residual[N] = {};
      Vec<T>::load(stage + i * N).widen(d);
      Vec<T>::load(stage + args.hidden + i * N).widen(h);
      weight[k].widen(w);
      if (args.d_residual != nullptr) Vec<T>::load(stage + 2 * args.hidden + i * N).widen(residual);
#pragma unroll
      for (int j = 0; j < N; ++j) d[j] = rstd * (d[j] * w[j] - h[j] * projection) + residual[j];
      const auto d_h = Vec<T>::narrow(d);
      d_h.store(args.d_h + row * args.hidden + i * N);
      largest.add(d_h);
    }
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int i = static_cast<int>(threadIdx.x + k * blockDim.x);
    if (i < vectors) store_floats(args.partial + blockIdx.x * args.hidden + i * N, d_weight[k]);
  }
  if constexpr (kAmax) update_amax(args.amax, largest.float_bits());
}

// Iterates over rows of any size and alignment. A block's sums of d_weight are in global memory, and each column
// belongs to one thread.
template <typename T, bool kAmax>
__global__ void __launch_bounds__(kRowThreads) backward_any_kernel(const BackwardArguments<T> args) {
  __shared__ float scratch[2][32];
  float* partial = args.partial + blockIdx.x * args.hidden;
  for (int64_t i = threadIdx.x; i < args.hidden; i += kRowThreads) partial[i] = 0;
  Magnitude<T> largest;
  int turn = 0;
  for (int64_t row = blockIdx.x; row < args.tokens; row += gridDim.x, turn ^= 1) {
    const int64_t at = row * args.hidden;
    const float rstd = args.rstd[row];
    float dot = 0;
    for (int64_t i = threadIdx.x; i < args.hidden; i += kRowThreads) {
      dot += to_float(args.d_out[at + i]) * to_float(args.weight[i]) * to_float(args.h[at + i]);
    }
    dot = block_reduce(dot, 0.0f, Add{}, scratch[turn]);
    const float projection = rstd * rstd * dot / static_cast<float>(args.hidden);
    for (int64_t i = threadIdx.x; i < args.hidden; i += kRowThreads) {
      const float d_out = to_float(args.d_out[at + i]);
      const float h = to_float(args.h[at + i]);
      partial[i] += d_out * h * rstd;
      const float residual = args.d_residual == nullptr ? 0.0f : to_float(args.d_residual[at + i]);
      const float d = rstd * (d_out * to_float(args.weight[i]) - h * projection) + residual;
      const Vec<T, 1> d_h{from_float<T>(d)};
      d_h.store(args.d_h + at + i);
      largest.add(d_h);
    }
  }
  if constexpr (kAmax) update_amax(args.amax, largest.float_bits());
}

// ---- Host

unsigned threads_for(int64_t vectors, int k) { return grid_dim(round_up(ceil_div(vectors, k), 32)); }

template <typename T, bool kAmax>
void forward(const RmsNormForward& args, Stream& stream) {
  const int64_t tokens = args.x.dim(0);
  const ForwardArguments<T> arguments{.out = args.cast.defined() ? nullptr : pointer<T>(args.out),
                                      .rstd = pointer<float>(args.rstd),
                                      .residual_out = pointer<T>(args.residual_out),
                                      .x = pointer<const T>(args.x),
                                      .residual = pointer<const T>(args.residual),
                                      .weight = pointer<const T>(args.weight),
                                      .amax = pointer<float>(args.amax),
                                      .hidden = args.x.dim(1),
                                      .eps = args.eps};
  const bool aligned = rows_are_aligned<T>(
      arguments.hidden, {args.out.raw(), arguments.residual_out, arguments.x, arguments.residual, arguments.weight});
  const int64_t vectors = arguments.hidden / kVector<T>;
  constexpr int kVectorsPerThread = 4;
  if (aligned && vectors <= kVectorsPerThread * kMaxThreads) {
    launch("rms_norm_forward", forward_kernel<T, kVectorsPerThread, kAmax>,
           {grid_dim(tokens), threads_for(vectors, kVectorsPerThread)}, stream, arguments);
  } else {
    launch("rms_norm_forward", forward_any_kernel<T, kAmax>, {grid_dim(tokens), kRowThreads}, stream, arguments);
  }
}

void cast_forward(const RmsNormForward& args, Stream& stream) {
  using T = __nv_bfloat16;
  const int64_t hidden = args.x.dim(1);
  const NormedSource source{pointer<const T>(args.residual.defined() ? args.residual_out : args.x),
                            pointer<const float>(args.rstd), pointer<const T>(args.weight)};
  expect_aligned<T>("rms_norm_forward cast", hidden, {source.h, source.weight});
  make_and_cast<CastOf::kActivation>("rms_norm_forward cast", source, args.cast, args.x.dim(0), hidden,
                                     args.cast.is_of(args.amax) ? Tensor() : args.amax, stream);
}

// Queues the kernel that computes d_h and the partial sums, and returns the number of its blocks.
template <typename T, bool kAmax>
int backward_rows(const BackwardArguments<T>& arguments, Stream& stream) {
  const auto blocks_at = [&](int64_t per_multiprocessor) {
    return static_cast<int>(std::min<int64_t>(per_multiprocessor * stream.multiprocessors(), arguments.tokens));
  };
  const auto launch_staged = [&](auto* kernel, int k, int stages) {
    const int64_t shared_bytes = stages * stage_bytes<T>(arguments.hidden);
    const int blocks = blocks_at(
        std::clamp<int64_t>(kSharedBytesPerMultiprocessor / shared_bytes, 1, kRmsNormBlocksPerMultiprocessor));
    launch("rms_norm_backward", kernel,
           {grid_dim(blocks), threads_for(arguments.hidden / kVector<T>, k), static_cast<size_t>(shared_bytes)}, stream,
           arguments);
    return blocks;
  };
  const bool aligned = rows_are_aligned<T>(arguments.hidden, {arguments.d_h, arguments.d_out, arguments.d_residual,
                                                              arguments.h, arguments.weight, arguments.partial});
  const int64_t vectors = arguments.hidden / kVector<T>;
  const int64_t row_bytes = stage_bytes<T>(arguments.hidden);
  if (aligned && vectors <= backward_threads(1)) return launch_staged(backward_kernel<T, 1, 3, kAmax>, 1, 3);
  if (aligned && vectors <= 2 * backward_threads(2)) return launch_staged(backward_kernel<T, 2, 3, kAmax>, 2, 3);
  if (aligned && vectors <= 4 * backward_threads(4)) {
    if (3 * row_bytes <= kSharedBytesPerMultiprocessor) return launch_staged(backward_kernel<T, 4, 3, kAmax>, 4, 3);
    if (2 * row_bytes <= kSharedBytesPerMultiprocessor) return launch_staged(backward_kernel<T, 4, 2, kAmax>, 4, 2);
  }
  const int blocks = blocks_at(kRmsNormBlocksPerMultiprocessor);
  launch("rms_norm_backward", backward_any_kernel<T, kAmax>, {grid_dim(blocks), kRowThreads}, stream, arguments);
  return blocks;
}

}  // namespace

void rms_norm_forward(const RmsNormForward& args, Stream& stream) {
  if (args.cast.defined()) {
    args.cast.is_of(args.amax) ? forward<__nv_bfloat16, true>(args, stream)
                               : forward<__nv_bfloat16, false>(args, stream);
    return cast_forward(args, stream);
  }
  with_element(args.x.dtype(), [&]<typename T>() {
    if (args.amax.defined()) return forward<T, true>(args, stream);
    forward<T, false>(args, stream);
  });
}

void rms_norm_backward(const RmsNormBackward& args, Stream& stream) {
  const int64_t hidden = args.h.dim(1);
  auto* partial = static_cast<float*>(stream.workspace(rms_norm_backward_workspace_bytes(hidden, stream)));
  int blocks = 0;
  with_element(args.h.dtype(), [&]<typename T>() {
    const BackwardArguments<T> arguments{.d_h = pointer<T>(args.d_h),
                                         .partial = partial,
                                         .d_out = pointer<const T>(args.d_out),
                                         .d_residual = pointer<const T>(args.d_residual),
                                         .h = pointer<const T>(args.h),
                                         .rstd = pointer<const float>(args.rstd),
                                         .weight = pointer<const T>(args.weight),
                                         .amax = pointer<float>(args.amax),
                                         .tokens = args.h.dim(0),
                                         .hidden = hidden};
    blocks =
        args.amax.defined() ? backward_rows<T, true>(arguments, stream) : backward_rows<T, false>(arguments, stream);
  });
  add_partials("rms_norm_backward", args.d_weight, partial, blocks, stream);
}

}  // namespace octavo::cuda

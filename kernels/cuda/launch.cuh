// Shared code of the CUDA files: the function that launches a kernel, 16-byte vectors of elements that are converted to
// float32, and reductions over a warp or a block. Element types are float and __nv_bfloat16; arithmetic is float32.
//
// The number N of elements that a thread loads at a time is a template parameter of a kernel: 16 bytes if every row is
// aligned to 16 bytes (rows_are_aligned), otherwise one element. So one source serves both cases.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "core/cuda_check.h"
#include "core/stream.h"

namespace octavo::cuda {

// ---- Host side

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;  // Bytes of dynamic shared memory.
  // Blocks along x that can read each other's shared memory. Divides grid.x.
  unsigned cluster_size = 1;
};

// Starts `kernel` on `stream`. Throws an error that contains `name` if the launch fails. An empty grid is not launched.
template <typename... Params, typename... Args>
void launch(const char* name, void (*kernel)(Params...), const LaunchShape& shape, const Stream& stream, Args... args) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  // Dynamic shared memory that needs no attribute. The other 16 of the default 48 KiB are left to static arrays.
  constexpr size_t kSharedBytesWithoutAsking = 32 * 1024;
  if (shape.shared_bytes > kSharedBytesWithoutAsking) {
    const auto bytes = static_cast<int>(shape.shared_bytes);
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), name);
  }
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {shape.cluster_size, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.attrs = &cluster;
  config.numAttrs = shape.cluster_size > 1 ? 1 : 0;
  config.stream = static_cast<cudaStream_t>(stream.native());
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...), name);
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }
inline unsigned grid_dim(int64_t blocks) {
  if (blocks < 0 || blocks > INT32_MAX) check(cudaErrorInvalidConfiguration, "a grid of more than 2^31 - 1 blocks");
  return static_cast<unsigned>(blocks);
}

// Number of elements of T in 16 bytes.
template <typename T>
inline constexpr int kVector = static_cast<int>(16 / sizeof(T));

// Returns whether each pointer, and each following row of `row_elements` elements of T, starts at a multiple of 16
// bytes. Null pointers (absent tensors) are ignored.
template <typename T>
bool rows_are_aligned(int64_t row_elements, std::initializer_list<const void*> pointers) {
  bool aligned = row_elements % kVector<T> == 0;
  for (const void* pointer : pointers) aligned = aligned && reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  return aligned;
}

template <typename T>
T* pointer(const Tensor& tensor) {
  return static_cast<T*>(tensor.raw());
}

// Calls f.operator()<T>() with the device type of a compute dtype (float32 or bfloat16).
template <typename F>
void with_element(DType dtype, F&& f) {
  if (dtype == DType::kFloat32) return f.template operator()<float>();
  if (dtype == DType::kBFloat16) return f.template operator()<__nv_bfloat16>();
  refuse_dtype(dtype);
}

#ifdef __CUDACC__

// ---- Elements and vectors

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T>
__device__ T from_float(float x) {
  if constexpr (std::is_same_v<T, float>) return x;
  if constexpr (!std::is_same_v<T, float>) return __float2bfloat16_rn(x);
}

// N elements in their memory format: 16 bytes, or one element. Loads and stores are single instructions. The streaming
// variants are for data that is not read again soon, so that it does not displace other data in the L2 cache.
template <typename T, int N = kVector<T>>
struct Vec {
  static_assert(N == 1 || N == kVector<T>);
  using Bits = std::conditional_t<N == 1, T, uint4>;
  Bits bits;

  __device__ static Vec load(const T* p) { return {*reinterpret_cast<const Bits*>(p)}; }
  __device__ static Vec load_streaming(const T* p) { return {__ldcs(reinterpret_cast<const Bits*>(p))}; }
  __device__ void store(T* p) const { *reinterpret_cast<Bits*>(p) = bits; }
  __device__ void store_streaming(T* p) const { __stcs(reinterpret_cast<Bits*>(p), bits); }

  __device__ void widen(float (&x)[N]) const {
    if constexpr (N == 1) {
      x[0] = to_float(bits);
    } else {
      const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (std::is_same_v<T, float>) {
          x[i] = __uint_as_float(words[i]);
        } else {
          x[2 * i] = __uint_as_float(words[i] << 16);
          x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
        }
      }
    }
  }

  __device__ static Vec narrow(const float (&x)[N]) {
    if constexpr (N == 1) {
      return {from_float<T>(x[0])};
    } else {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (std::is_same_v<T, float>) {
          words[i] = __float_as_uint(x[i]);
        } else {
          const __nv_bfloat162 pair = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
          words[i] = *reinterpret_cast<const uint32_t*>(&pair);
        }
      }
      return {make_uint4(words[0], words[1], words[2], words[3])};
    }
  }
};

// Loads M consecutive elements of any element type and converts them to float32, 16 bytes at a time, or one element if
// M is 1.
template <int M, typename T>
__device__ void load_floats(const T* p, float (&x)[M]) {
  constexpr int N = M == 1 ? 1 : kVector<T>;
#pragma unroll
  for (int i = 0; i < M; i += N) {
    float part[N];
    Vec<T, N>::load_streaming(p + i).widen(part);
#pragma unroll
    for (int j = 0; j < N; ++j) x[i + j] = part[j];
  }
}

template <int M, typename T>
__device__ void store_floats(T* p, const float (&x)[M]) {
  constexpr int N = M == 1 ? 1 : kVector<T>;
#pragma unroll
  for (int i = 0; i < M; i += N) {
    float part[N];
#pragma unroll
    for (int j = 0; j < N; ++j) part[j] = x[i + j];
    Vec<T, N>::narrow(part).store_streaming(p + i);
  }
}

// ---- Reductions. Every thread gets the result. The order of summation depends only on the block's size.

struct Add {
  template <typename V>
  __device__ V operator()(V a, V b) const {
    return a + b;
  }
};
struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

template <typename V, typename Op>
__device__ V warp_reduce(V value, Op op) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = op(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}

// `scratch` holds 32 values in shared memory. Two consecutive reductions need different scratch, because a fast thread
// may begin the second reduction while a slow thread still reads the scratch of the first.
// Requires: the block's size is a multiple of 32.
template <typename V, typename Op>
__device__ V block_reduce(V value, V identity, Op op, V* scratch) {
  value = warp_reduce(value, op);
  const unsigned warps = blockDim.x / 32;
  if (warps == 1) return value;
  const unsigned lane = threadIdx.x % 32;
  if (lane == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  return warp_reduce(lane < warps ? scratch[lane] : identity, op);
}

#endif  // __CUDACC__

}  // namespace octavo::cuda

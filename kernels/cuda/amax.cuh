// Amaxes in CUDA kernels. An amax is the maximum of |x|, where infinity and NaN count as the largest values. It is
// computed on the bits of the floats as in kernels/math/cpu_math.h. A thread collects a Magnitude, and a block updates
// the amax in global memory with at most one atomic. A maximum does not depend on the order, so the result is
// deterministic.
#pragma once

#include "kernels/cuda/launch.cuh"

#ifdef __CUDACC__

namespace octavo::cuda {

// The largest |x| of the added vectors, as bits of T. Bfloat16 values are processed in pairs.
template <typename T>
struct Magnitude {
  static constexpr bool kPaired = std::is_same_v<T, __nv_bfloat16>;
  uint32_t bits = 0;

  __device__ void add_word(uint32_t word) {
    if constexpr (kPaired) {
      bits = __vmaxu2(bits, word & 0x7fff7fffu);
    } else {
      bits = max(bits, word & 0x7fffffffu);
    }
  }
  template <int N>
  __device__ void add(const Vec<T, N>& v) {
    if constexpr (N > 1) {
      add_word(v.bits.x);
      add_word(v.bits.y);
      add_word(v.bits.z);
      add_word(v.bits.w);
    } else if constexpr (kPaired) {
      add_word(__bfloat16_as_ushort(v.bits));
    } else {
      add_word(__float_as_uint(v.bits));
    }
  }
  // Returns the result as the bits of a float32.
  __device__ uint32_t float_bits() const {
    if constexpr (kPaired) return max(bits << 16, bits & 0xffff0000u);
    if constexpr (!kPaired) return bits;
  }
};

// Returns the largest of the warp's 32 numbers.
__device__ inline uint32_t warp_max(uint32_t bits) { return __reduce_max_sync(0xffffffffu, bits); }

// Returns the largest number of the block to the threads of the first warp.
// Requires: all threads call block_max(), with __syncthreads() between two calls. The block consists of whole warps.
__device__ inline uint32_t block_max(uint32_t bits) {
  __shared__ uint32_t scratch[32];
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned warps = blockDim.x * blockDim.y * blockDim.z / 32;
  bits = warp_max(bits);
  if (thread % 32 == 0) scratch[thread / 32] = bits;
  __syncthreads();
  return thread < 32 ? warp_max(thread < warps ? scratch[thread] : 0) : 0;
}

// Sets *amax = max(*amax, the block's float bits). The requirements of block_max() apply.
__device__ inline void update_amax(float* amax, uint32_t bits) {
  bits = block_max(bits);
  auto* target = reinterpret_cast<uint32_t*>(amax);
  const bool first = threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0;
  // The value never decreases, so a stale read can cause a superfluous atomic but cannot lose an update. Few blocks
  // reach the atomic.
  if (first && bits > __ldcg(target)) atomicMax(target, bits);
}

}  // namespace octavo::cuda

#endif  // __CUDACC__

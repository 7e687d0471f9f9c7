#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/math/bit_hash.h"
#include "kernels/math/bit_hash_key.h"

namespace octavo::cuda {

namespace {

constexpr int kThreads = 512;
constexpr int kBlocksPerMultiprocessor = 4;
constexpr int kUnroll = 4;

using Word = unsigned long long;

// Returns the part of the hash (kernels/math/bit_hash.h) that 16 bytes of the tensor contribute, its group `group`.
template <typename Bits>
__device__ uint64_t group_hash(const uint4& bits, uint64_t group) {
  constexpr int kPerWord = static_cast<int>(sizeof(uint32_t) / sizeof(Bits));
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
  const uint64_t key = mix_bits(group);
  uint64_t sum = 0;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
#pragma unroll
    for (int j = 0; j < kPerWord; ++j) {
      const auto element = static_cast<Bits>(words[w] >> (8 * sizeof(Bits) * j));
      sum += element * ((key ^ mix_bits(~static_cast<uint64_t>(w * kPerWord + j))) | 1);
    }
  }
  return sum;
}

__device__ void add_to(Word* out, uint64_t sum) {
  __shared__ Word scratch[32];
  const Word total = block_reduce(static_cast<Word>(sum), Word{0}, Add{}, scratch);
  // The atomics may run in any order, because integer addition is associative.
  if (threadIdx.x == 0) atomicAdd(out, total);
}

// Elements from `head` to head + vectors * N are whole groups, aligned to 16 bytes. The first block also hashes the
// elements before and after them.
template <typename Bits>
__global__ void __launch_bounds__(kThreads)
    hash_groups_kernel(Word* out, const Bits* x, int64_t begin, int64_t n, int64_t head) {
  constexpr int N = kVector<Bits>;
  const int64_t vectors = (n - head) / N;
  const auto first_group = static_cast<uint64_t>((begin + head) / N);
  const auto* groups = reinterpret_cast<const uint4*>(x + head);
  uint64_t sum = 0;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * kUnroll;
  for (int64_t v = static_cast<int64_t>(blockIdx.x) * kThreads * kUnroll + threadIdx.x; v < vectors; v += stride) {
    uint4 bits[kUnroll] = {};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (v + u * kThreads < vectors) bits[u] = __ldcs(groups + v + u * kThreads);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      // Zero bits add nothing to the hash.
      sum += group_hash<Bits>(bits[u], first_group + static_cast<uint64_t>(v + u * kThreads));
    }
  }
  if (blockIdx.x == 0) {
    const int64_t rest = head + vectors * N;
    const int64_t i = threadIdx.x < head ? threadIdx.x : rest + threadIdx.x - head;
    if (i < n && threadIdx.x < head + n - rest) sum += x[i] * bit_hash_key(static_cast<uint64_t>(begin + i), N);
  }
  add_to(out, sum);
}

template <typename Bits>
__global__ void __launch_bounds__(kThreads) hash_elements_kernel(Word* out, const Bits* x, int64_t begin, int64_t n) {
  uint64_t sum = 0;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += stride) {
    sum += x[i] * bit_hash_key(static_cast<uint64_t>(begin + i), kVector<Bits>);
  }
  add_to(out, sum);
}

template <typename Bits>
void hash(const BitHash& args, const Stream& stream) {
  constexpr int64_t kGroup = kVector<Bits>;
  const auto* x = pointer<const Bits>(args.x);
  const int64_t n = args.x.numel();
  const int64_t head = (kGroup - args.begin % kGroup) % kGroup;  // Number of elements before the first whole group.
  const bool aligned = head < n && reinterpret_cast<uintptr_t>(x + head) % 16 == 0;
  const int64_t a_block = kThreads * (aligned ? kUnroll * kGroup : 1);
  const int64_t most = int64_t{stream.multiprocessors()} * kBlocksPerMultiprocessor;
  const LaunchShape shape{grid_dim(std::min(ceil_div(n, a_block), most)), kThreads};
  auto* out = static_cast<Word*>(args.out.raw());
  if (aligned) {
    launch("bit_hash", hash_groups_kernel<Bits>, shape, stream, out, x, args.begin, n, head);
  } else {
    launch("bit_hash", hash_elements_kernel<Bits>, shape, stream, out, x, args.begin, n);
  }
}

}  // namespace

void bit_hash(const BitHash& args, Stream& stream) {
  switch (dtype_bytes(args.x.dtype())) {
    case 4:
      return hash<uint32_t>(args, stream);
    case 2:
      return hash<uint16_t>(args, stream);
    default:
      return hash<uint8_t>(args, stream);
  }
}

}  // namespace octavo::cuda

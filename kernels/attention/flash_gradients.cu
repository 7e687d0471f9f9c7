#include <algorithm>

#include "kernels/attention/flash_gradients.h"
#include "kernels/attention/rotated.cuh"
#include "kernels/cuda/amax.cuh"

namespace octavo::cuda {

namespace {

using Element = __nv_bfloat16;

constexpr int kRows = 64;
constexpr int kThreads = 128;
constexpr int kOctets = 4;         // Number of blocks of 8 columns that a thread has of either half of a head.
constexpr int kHeadsPerBlock = 4;  // Number of heads that use angles which were loaded once.
constexpr int kOctetElements = kRows * 8;

__host__ __device__ int slices_of(const FlashGradient& part) {
  return static_cast<int>((part.heads + kHeadsPerBlock - 1) / kHeadsPerBlock);
}

// The elements of a thread in a block of 8 columns: two columns of row r, then of row r + 8.
using Sums = float[kOctets][4];

// Loads the cosines or the sines of the elements.
__device__ void load_angles(Sums& angles, const float* first_row, const float* second_row) {
#pragma unroll
  for (int j = 0; j < kOctets; ++j) {
    const float2 first = __ldg(reinterpret_cast<const float2*>(first_row + 8 * j));
    const float2 second = __ldg(reinterpret_cast<const float2*>(second_row + 8 * j));
    angles[j][0] = first.x;
    angles[j][1] = first.y;
    angles[j][2] = second.x;
    angles[j][3] = second.y;
  }
}

__device__ void load_sums(Sums& sums, const float* p) {
#pragma unroll
  for (int j = 0; j < kOctets; ++j) {
    const float4 x = __ldcs(reinterpret_cast<const float4*>(p + j * kOctetElements));
    sums[j][0] = x.x;
    sums[j][1] = x.y;
    sums[j][2] = x.z;
    sums[j][3] = x.w;
  }
}

__device__ float rounded(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }

__device__ uint32_t pack(float a, float b) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Swaps words among four neighbouring threads: thread i gets word i of each of them.
__device__ uint4 transpose_quad(uint32_t (&words)[4]) {
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
    const bool upper = (threadIdx.x & distance) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & distance) != 0) continue;
      uint32_t& low = words[i];
      uint32_t& high = words[i + distance];
      const uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? low : high, distance);
      (upper ? low : high) = got;
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// Rounds the sums of one row and stores them. A thread stores 8 adjacent elements.
__device__ void store_row(Element* out, const Sums& sums, int of_row, bool exists, Magnitude<Element>& largest) {
  uint32_t words[kOctets];
#pragma unroll
  for (int j = 0; j < kOctets; ++j) words[j] = pack(sums[j][2 * of_row], sums[j][2 * of_row + 1]);
  const Vec<Element> vector{transpose_quad(words)};
  if (!exists) return;
  vector.store(out);
  largest.add(vector);
}

// Each block has 64 rows of up to kHeadsPerBlock heads, and of each head 32 columns of both halves.
template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, 4) flash_gradients_kernel(const FlashGradients args) {
  constexpr int kGroups = kHeadDim / (2 * 8 * kOctets);
  const int group = static_cast<int>(blockIdx.y) % kGroups;
  int slice = static_cast<int>(blockIdx.y) / kGroups;
  const int q_slices = slices_of(args.q);
  const int k_slices = slices_of(args.k);
  const bool of_q = slice < q_slices;
  const bool of_k = !of_q && slice < q_slices + k_slices;
  const FlashGradient& part = of_q ? args.q : of_k ? args.k : args.v;
  slice -= of_q ? 0 : of_k ? q_slices : q_slices + k_slices;

  const int64_t sequence = blockIdx.z;
  const bool documents = part.begin != nullptr;
  const int64_t begin = documents ? part.begin[sequence] : 0;
  const int64_t length = documents ? part.length[sequence] : part.tokens;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kRows;
  if (first_row >= length) return;
  const int64_t padded_begin =
      documents ? (begin + sequence * part.tile) / part.tile * part.tile : sequence * part.heads * part.rows;
  const int thread = static_cast<int>(threadIdx.x);
  const int quad_lane = thread % 4;
  const int64_t row = first_row + thread / 32 * 16 + thread % 32 / 4;
  const float* sums = static_cast<const float*>(part.sums) + (padded_begin + first_row) * kHeadDim +
                      group * kOctets * kOctetElements + thread * 4;
  Element* out = static_cast<Element*>(part.out) + sequence * part.out_sequence + (begin + row) * part.out_token +
                 8 * (group * kOctets + quad_lane);

  const bool rotates = args.table != nullptr && (of_q || of_k);
  Sums cosine;
  Sums sine;
  if (rotates) {
    const auto angles_of = [&](int64_t r) {
      return args.table + (begin + r) % args.table_rows * kHeadDim + group * kOctets * 8 + 2 * quad_lane;
    };
    load_angles(cosine, angles_of(row), angles_of(row + 8));
    load_angles(sine, angles_of(row) + kHeadDim / 2, angles_of(row + 8) + kHeadDim / 2);
  }
  Magnitude<Element> largest;
  const int end = min(static_cast<int>(part.heads), (slice + 1) * kHeadsPerBlock);
  for (int head = slice * kHeadsPerBlock; head < end; ++head) {
    const float* of_head = sums + head * part.rows * kHeadDim;
    Sums low;
    Sums high;
    load_sums(low, of_head);
    load_sums(high, of_head + kHeadDim / 16 * kOctetElements);
#pragma unroll
    for (int j = 0; j < kOctets; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float a = __fmul_rn(low[j][e], part.scale);
        const float b = __fmul_rn(high[j][e], part.scale);
        if (rotates) {
          low[j][e] = rotated(rounded(a), -rounded(b), cosine[j][e], -sine[j][e]);
          high[j][e] = rotated(rounded(b), rounded(a), cosine[j][e], -sine[j][e]);
        } else {
          low[j][e] = a;
          high[j][e] = b;
        }
      }
    }
#pragma unroll
    for (int of_row = 0; of_row < 2; ++of_row) {
      Element* p = out + 8 * of_row * part.out_token + head * kHeadDim;
      const bool exists = row + 8 * of_row < length;
      store_row(p, low, of_row, exists, largest);
      store_row(p + kHeadDim / 2, high, of_row, exists, largest);
    }
  }
  if (args.amax != nullptr) update_amax(args.amax, largest.float_bits());
}

template <int kHeadDim>
void launch_flash_gradients(const FlashGradients& args, Stream& stream) {
  constexpr int kGroups = kHeadDim / (2 * 8 * kOctets);
  const int64_t tokens = std::max({args.q.tokens, args.k.tokens, args.v.tokens});
  const int slices = slices_of(args.q) + slices_of(args.k) + slices_of(args.v);
  launch("flash_gradients", flash_gradients_kernel<kHeadDim>,
         {dim3(grid_dim(ceil_div(tokens, kRows)), grid_dim(slices * kGroups), grid_dim(args.sequences)), kThreads},
         stream, args);
}

}  // namespace

void flash_gradients(const FlashGradients& args, Stream& stream) {
  if (args.head_dim == 64) return launch_flash_gradients<64>(args, stream);
  launch_flash_gradients<128>(args, stream);
}

}  // namespace octavo::cuda

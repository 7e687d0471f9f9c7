// Statistics of casts, over the same tiles as the casts (fp8_tile.cuh). Blocks count in integers and add their counts
// with atomics, whose order does not matter. A second kernel adds the totals to the caller's float32 sums.
#include "kernels/fp8/fp8_stats.h"
#include "kernels/fp8/fp8_tile.cuh"

namespace octavo::cuda {

namespace {

constexpr int kMaxima = Fp8Maximum::kCount;
static_assert(Fp8Sum::kElements == 0);

template <typename T>
struct StatsArguments {
  const T* x;        // [m, n]
  const uint8_t* q;  // [m, n]
  const float* scale_inv;
  const float* amax;  // amax that the scale is computed from, if the scaling has takes_amax
  int64_t m;
  int64_t n;
  unsigned long long* counts;  // += [kFp8Counts], in the order of Fp8Sum
  float* maxima;               // = max(itself, new) [kMaxima]
};

// Finds the scales of the 8 rows of a thread's tile. Rows outside x have scale 0.
template <Scaling kScaling, Format kFormat, typename T>
__device__ void find_thread_tile_scales(const StatsArguments<T>& args, const ThreadPosition& at,
                                        float (&scale)[kThreadTile], float (&scale_inv)[kThreadTile]) {
  constexpr bool kTakesAmax = traits(kScaling).takes_amax;
#pragma unroll
  for (int r = 0; r < kThreadTile; ++r) {
    const int64_t row = at.row + at.thread_row * kThreadTile + r;
    const int64_t index = scale_index(kScaling, args.m, args.n, row, at.column);
    scale_inv[r] = row < args.m ? args.scale_inv[index] : 0.0f;
    scale[r] = row < args.m ? inverse_of(scale_inv[r]) : 0.0f;
    if (kTakesAmax && row < args.m) scale[r] = scale_of<kFormat>(*args.amax);
  }
}

// Returns the quantized elements of a row of the thread tile, with zeros outside q.
__device__ inline uint2 load_bytes(const uint8_t* q, int64_t m, int64_t n, int64_t row, int64_t column) {
  if (row >= m || column >= n) return make_uint2(0, 0);
  return __ldcs(reinterpret_cast<const uint2*>(q + row * n + column));
}

template <typename T, Format kFormat, Scaling kScaling>
__global__ void __launch_bounds__(kTileThreads) fp8_stats_kernel(const StatsArguments<T> args) {
  constexpr uint32_t kSaturated = fp8_saturated_bits(kFormat == __NV_E4M3 ? DType::kFloat8E4M3 : DType::kFloat8E5M2);
  constexpr uint32_t kInfinity = 0x7f800000u;
  __shared__ uint32_t counts[kFp8Counts];
  __shared__ uint32_t maxima[kMaxima];
  if (threadIdx.x < kFp8Counts) counts[threadIdx.x] = 0;
  if (threadIdx.x < kMaxima) maxima[threadIdx.x] = 0;
  __syncthreads();

  const ThreadPosition at = position_of_thread(args.n);
  const ThreadTile<T> thread_tile = load_thread_tile(args.x, args.m, args.n, args.n, at);
  float scale[kThreadTile];
  float scale_inv[kThreadTile];
  find_thread_tile_scales<kScaling, kFormat>(args, at, scale, scale_inv);
  uint32_t count[kFp8Counts] = {};
  uint32_t largest[kMaxima] = {thread_tile.magnitude(), 0, 0};
#pragma unroll
  for (int r = 0; r < kThreadTile; ++r) {
    const uint2 bytes = load_bytes(args.q, args.m, args.n, at.row + at.thread_row * kThreadTile + r,
                                   at.column + at.thread_column * kThreadTile);
    float x[kThreadTile];
    thread_tile.widen(r, x);
#pragma unroll
    for (int c = 0; c < kThreadTile; ++c) {
      const uint32_t byte = (c < 4 ? bytes.x : bytes.y) >> (c % 4 * 8);
      const uint32_t scaled = __float_as_uint(__fmul_rn(x[c], scale[r])) & 0x7fffffffu;
      const bool non_zero = (__float_as_uint(x[c]) & 0x7fffffffu) != 0;
      count[Fp8Sum::kNonZero - 1] += non_zero ? 1 : 0;
      count[Fp8Sum::kSaturated - 1] += scaled >= kSaturated && scaled < kInfinity ? 1 : 0;
      count[Fp8Sum::kFlushed - 1] += non_zero && (byte & 0x7fu) == 0 ? 1 : 0;
    }
    largest[Fp8Maximum::kScaleInv] = max(largest[Fp8Maximum::kScaleInv], __float_as_uint(scale_inv[r]));
    largest[Fp8Maximum::kScale] = max(largest[Fp8Maximum::kScale], __float_as_uint(scale[r]));
  }

#pragma unroll
  for (int i = 0; i < kFp8Counts; ++i) {
    const uint32_t of_warp = __reduce_add_sync(0xffffffffu, count[i]);
    if (threadIdx.x % 32 == 0) atomicAdd(&counts[i], of_warp);
  }
#pragma unroll
  for (int i = 0; i < kMaxima; ++i) {
    const uint32_t of_warp = warp_max(largest[i]);
    if (threadIdx.x % 32 == 0) atomicMax(&maxima[i], of_warp);
  }
  __syncthreads();
  if (threadIdx.x < kFp8Counts && counts[threadIdx.x] != 0) {
    atomicAdd(args.counts + threadIdx.x, static_cast<unsigned long long>(counts[threadIdx.x]));
  }
  if (threadIdx.x < kMaxima) {
    auto* target = reinterpret_cast<uint32_t*>(args.maxima + threadIdx.x);
    if (maxima[threadIdx.x] > __ldcg(target)) atomicMax(target, maxima[threadIdx.x]);
  }
}

__global__ void add_counts_kernel(float* sums, const unsigned long long* counts, unsigned long long elements) {
  if (threadIdx.x >= Fp8Sum::kCount) return;
  sums[threadIdx.x] += __ull2float_rn(threadIdx.x == Fp8Sum::kElements ? elements : counts[threadIdx.x - 1]);
}

template <typename T, Format kFormat, Scaling kScaling>
void launch_stats(const StatsArguments<T>& args, Stream& stream) {
  expect_aligned<T>("fp8_stats", args.n, {args.x});
  expect_aligned<uint8_t>("fp8_stats", args.n, {args.q});
  launch("fp8_stats", fp8_stats_kernel<T, kFormat, kScaling>, tiles(args.m, args.n), stream, args);
}

}  // namespace

void fp8_stats(const Fp8Stats& tensors, Stream& stream) {
  void* workspace = stream.workspace(fp8_stats_workspace_bytes(stream));
  stream.zero(Tensor(workspace, DType::kUInt8, {fp8_stats_workspace_bytes(stream)}));
  auto* counts = static_cast<unsigned long long*>(workspace);
  with_element(tensors.x.dtype(), [&]<typename T>() {
    const StatsArguments<T> args{.x = pointer<const T>(tensors.x),
                                 .q = pointer<const uint8_t>(tensors.rows.data),
                                 .scale_inv = pointer<const float>(tensors.rows.scale_inv),
                                 .amax = pointer<const float>(tensors.amax),
                                 .m = tensors.x.dim(0),
                                 .n = tensors.x.dim(1),
                                 .counts = counts,
                                 .maxima = pointer<float>(tensors.maxima)};
    with_format(tensors.rows.data.dtype(), [&]<Format kFormat>() {
      with_scaling(tensors.rows.scaling, [&]<Scaling kScaling>() { launch_stats<T, kFormat, kScaling>(args, stream); });
    });
  });
  launch("fp8_stats", add_counts_kernel, {1, 32}, stream, pointer<float>(tensors.sums), counts,
         static_cast<unsigned long long>(tensors.x.numel()));
}

}  // namespace octavo::cuda

#include "kernels/cuda/flat.cuh"
#include "kernels/fp8/fp8_shard.h"
#include "kernels/fp8/fp8_tile.cuh"

namespace octavo::cuda {

namespace {

template <Format kFormat, typename T>
struct CastOp {
  uint8_t* out;
  const T* x;
  const float* amax;

  template <int M>
  __device__ void operator()(int64_t i) const {
    float values[M];
    load_floats(x + i, values);
    const float scale = scale_of<kFormat>(*amax);
    if constexpr (M == 1) {
      out[i] = static_cast<uint8_t>(cast_pair<kFormat>(values[0], scale, 0.0f, scale));
    } else {
      uint32_t words[M / 4];
#pragma unroll
      for (int w = 0; w < M / 4; ++w) {
        const uint32_t low = cast_pair<kFormat>(values[4 * w], scale, values[4 * w + 1], scale);
        const uint32_t high = cast_pair<kFormat>(values[4 * w + 2], scale, values[4 * w + 3], scale);
        words[w] = low | high << 16;
      }
      if constexpr (M == 8) *reinterpret_cast<uint2*>(out + i) = make_uint2(words[0], words[1]);
      if constexpr (M == 16) *reinterpret_cast<uint4*>(out + i) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
};

// A block has 16 KiB of shared memory and 64 bytes of loads in flight per thread, so six blocks keep a multiprocessor
// busy.
__global__ void __launch_bounds__(kTileThreads, 6)
    transpose_kernel(uint8_t* out, const uint8_t* x, int64_t m, int64_t n) {
  __shared__ TransposedTile tile;
  const ThreadPosition at = position_of_thread(n);
  store_columns(out, load_rows(x, at, m, n), at, m, n, tile);
}

template <Format kFormat>
struct ScaleInvOp {
  float* scale_inv;
  const float* amax;
  int64_t stride;

  template <int M>
  __device__ void operator()(int64_t i) const {
    scale_inv[i * stride] = inverse_of(scale_of<kFormat>(amax[i]));
  }
};

}  // namespace

void fp8_cast_piece(const Fp8CastPiece& args, Stream& stream) {
  with_element(args.x.dtype(), [&]<typename T>() {
    with_format(args.out.dtype(), [&]<Format kFormat>() {
      const CastOp<kFormat, T> op{pointer<uint8_t>(args.out), pointer<const T>(args.x),
                                  pointer<const float>(args.amax)};
      constexpr int kPerThread = 2 * kVector<T>;  // two loads, one store of 8 or 16 bytes
      launch_flat<kPerThread>("fp8_cast_piece", op, args.x.numel(), stream, op.out, op.x);
    });
  });
}

void fp8_transpose(const Fp8Transpose& args, Stream& stream) {
  const int64_t m = args.x.dim(0);
  const int64_t n = args.x.dim(1);
  const auto* x = pointer<const uint8_t>(args.x);
  auto* out = pointer<uint8_t>(args.out);
  expect_aligned<uint8_t>("fp8_transpose", n, {x});
  expect_aligned<uint8_t>("fp8_transpose", m, {out});
  launch("fp8_transpose", transpose_kernel, tiles(m, n), stream, out, x, m, n);
}

void fp8_scale_inv(const Fp8ScaleInv& args, Stream& stream) {
  with_format(args.format, [&]<Format kFormat>() {
    const ScaleInvOp<kFormat> op{pointer<float>(args.scale_inv), pointer<const float>(args.amax),
                                 scale_inv_stride(args)};
    launch_flat<1>("fp8_scale_inv", op, args.amax.numel(), stream, op.amax);
  });
}

}  // namespace octavo::cuda

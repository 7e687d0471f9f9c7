// Last step of kernels in which each block writes its own partial sums: adds them in an order that depends only on the
// number of blocks.
#pragma once

#include "kernels/cuda/launch.cuh"

#ifdef __CUDACC__

namespace octavo::cuda {

// out[c] += the sum over r of partial[r][c]. A block processes 32 columns. Thread (x, y) adds rows y, y + 32, ... of
// column x, and then a warp adds those 32 sums.
static __global__ void __launch_bounds__(1024)
    add_partials_kernel(float* out, const float* partial, int rows, int64_t columns) {
  __shared__ float sums[32][33];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x;
  float sum = 0;
  if (column < columns) {
#pragma unroll 8
    for (int row = static_cast<int>(threadIdx.y); row < rows; row += 32) sum += partial[row * columns + column];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  const float total = warp_reduce(sums[threadIdx.x][threadIdx.y], Add{});
  const int64_t out_column = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.y;
  if (threadIdx.x == 0 && out_column < columns) out[out_column] += total;
}

// Adds the rows of partial [rows, columns] to out [columns] float32.
inline void add_partials(const char* name, const Tensor& out, const float* partial, int rows, Stream& stream) {
  const int64_t columns = out.numel();
  launch(name, add_partials_kernel, {grid_dim(ceil_div(columns, 32)), dim3(32, 32)}, stream, pointer<float>(out),
         partial, rows, columns);
}

}  // namespace octavo::cuda

#endif  // __CUDACC__

#include "kernels/cuda/launch.cuh"
#include "kernels/fp8/amax_history.h"

namespace octavo::cuda {

namespace {

__global__ void amax_history_kernel(float* scaling, float* history, float* current, int64_t rows, int64_t slots,
                                    int64_t row, float factor, bool replaces, const float* skip) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= slots) return;
  unsigned collected = __float_as_uint(history[row * slots + i]);  // magnitudes compare as integers
  const unsigned added = __float_as_uint(current[i]);
  if ((skip == nullptr || *skip == 0) && added != 0) collected = replaces ? added : max(collected, added);
  history[row * slots + i] = __uint_as_float(collected);
  current[i] = 0;
  unsigned largest = 0;
  for (int64_t r = 0; r < rows; ++r) largest = max(largest, __float_as_uint(history[r * slots + i]));
  scaling[i] = largest == 0 ? kUnknownAmax : __uint_as_float(largest) * factor;
}

}  // namespace

void amax_history(const AmaxHistory& args, Stream& stream) {
  constexpr unsigned kThreads = 128;
  const int64_t slots = args.current.numel();
  launch("amax_history", amax_history_kernel, {grid_dim(ceil_div(slots, kThreads)), kThreads}, stream,
         pointer<float>(args.scaling), pointer<float>(args.history), pointer<float>(args.current), args.history.dim(0),
         slots, args.row, args.factor, args.replaces, pointer<const float>(args.skip));
}

}  // namespace octavo::cuda

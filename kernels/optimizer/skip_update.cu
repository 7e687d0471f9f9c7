#include "kernels/cuda/launch.cuh"
#include "kernels/optimizer/skip_update.h"

namespace octavo::cuda {

namespace {

// Runs in a single thread, because there is only one loss per dataset.
__global__ void skip_update_kernel(float* skip, const float* loss_sums, int64_t n, const float* grad_sum_of_squares,
                                   float inverse_targets, float loss_limit) {
  float loss = 0;
  for (int64_t i = 0; i < n; ++i) loss += loss_sums[i];
  loss *= inverse_targets;
  const bool usable = isfinite(loss) && isfinite(*grad_sum_of_squares);
  *skip = usable && loss <= loss_limit ? 0.0f : 1.0f;
}

}  // namespace

void skip_update(const SkipUpdate& args, Stream& stream) {
  launch("skip_update", skip_update_kernel, {1, 1}, stream, pointer<float>(args.skip),
         pointer<const float>(args.loss_sums), args.loss_sums.numel(), pointer<const float>(args.grad_sum_of_squares),
         args.inverse_targets, args.loss_limit);
}

}  // namespace octavo::cuda

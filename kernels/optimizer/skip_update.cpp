#include "kernels/optimizer/skip_update.h"

#include <cmath>

#include "core/error.h"
#include "core/profiler.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/optimizer/optimizer_cuda.h"

namespace octavo {

namespace cpu {

void skip_update(const SkipUpdate& args) {
  float loss = 0;
  for (int64_t i = 0; i < args.loss_sums.numel(); ++i) loss += args.loss_sums.data<float>()[i];
  loss *= args.inverse_targets;
  const bool usable = std::isfinite(loss) && std::isfinite(args.grad_sum_of_squares.data<float>()[0]);
  args.skip.data<float>()[0] = usable && loss <= args.loss_limit ? 0.0f : 1.0f;
}

}  // namespace cpu

void skip_update(const SkipUpdate& args, Stream& stream) {
  expect_tensor(args.skip, "skip_update skip", DType::kFloat32, {1});
  expect_tensor(args.loss_sums, "skip_update loss_sums", DType::kFloat32, {args.loss_sums.numel()});
  expect_tensor(args.grad_sum_of_squares, "skip_update grad_sum_of_squares", DType::kFloat32, {1});
  const OpTimer timer(stream, "skip_update", args.loss_sums.bytes());
  if (ran_elsewhere<cuda::skip_update>(args, stream)) return;
  cpu::skip_update(args);
}

}  // namespace octavo

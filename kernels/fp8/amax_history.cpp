#include "kernels/fp8/amax_history.h"

#include <algorithm>
#include <bit>

#include "core/error.h"
#include "core/profiler.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/fp8/fp8_cuda.h"

namespace octavo {

namespace cpu {

void amax_history(const AmaxHistory& args) {
  const int64_t slots = args.current.numel();
  float* history = args.history.data<float>();
  float* current = args.current.data<float>();
  const bool skip = args.skip.defined() && args.skip.data<float>()[0] != 0;
  for (int64_t i = 0; i < slots; ++i) {
    auto collected = std::bit_cast<uint32_t>(history[args.row * slots + i]);  // magnitudes compare as integers
    const auto added = std::bit_cast<uint32_t>(current[i]);
    if (!skip && added != 0) collected = args.replaces ? added : std::max(collected, added);
    history[args.row * slots + i] = std::bit_cast<float>(collected);
    current[i] = 0;
    uint32_t largest = 0;
    for (int64_t r = 0; r < args.history.dim(0); ++r) {
      largest = std::max(largest, std::bit_cast<uint32_t>(history[r * slots + i]));
    }
    args.scaling.data<float>()[i] = largest == 0 ? kUnknownAmax : std::bit_cast<float>(largest) * args.factor;
  }
}

}  // namespace cpu

void amax_history(const AmaxHistory& args, Stream& stream) {
  const int64_t slots = args.current.numel();
  expect_tensor(args.current, "amax_history current", DType::kFloat32, {slots});
  expect_tensor(args.scaling, "amax_history scaling", DType::kFloat32, {slots});
  expect_tensor(args.history, "amax_history history", DType::kFloat32, {args.history.dim(0), slots});
  if (args.skip.defined()) expect_tensor(args.skip, "amax_history skip", DType::kFloat32, {1});
  CHECK(args.row >= 0 && args.row < args.history.dim(0), "amax_history: row {} of {}", args.row, args.history.dim(0));
  const OpTimer timer(stream, "amax_history", args.history.bytes());
  if (ran_elsewhere<cuda::amax_history>(args, stream)) return;
  cpu::amax_history(args);
}

}  // namespace octavo

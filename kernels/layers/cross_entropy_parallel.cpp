#include "kernels/layers/cross_entropy_parallel.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/profiler.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/layers/cross_entropy_cpu.h"
#include "kernels/layers/layers_cuda.h"

namespace octavo {

namespace cpu {

// The smallest value of a maximum. It is finite, so a difference of maxima is not NaN if all logits are -infinity.
constexpr float kLowestMax = std::numeric_limits<float>::lowest();

template <typename T>
void cross_entropy_stats_row(const CrossEntropyStats& args, int64_t t) {
  const int64_t vocab = args.logits.dim(1);
  const T* logits = args.logits.data<T>() + t * vocab;
  float* stats = args.stats.data<float>() + t * kCrossEntropyStats;
  const int64_t target = args.targets.data<int32_t>()[t];
  if (target < 0) {
    std::fill_n(stats, kCrossEntropyStats, 0.0f);
    return;
  }
  const int64_t column = target - args.vocab_begin;
  stats[0] = std::max(row_max(logits, vocab), kLowestMax);
  stats[1] = sum_of_exp(logits, vocab, stats[0]);
  stats[2] = column >= 0 && column < vocab ? static_cast<float>(logits[column]) : 0.0f;
}

WholeRow combine_ranks(const Tensor& stats, int64_t t) {
  const int64_t ranks = stats.dim(0);
  const auto of_rank = [&](int64_t r) { return stats.data<float>() + (r * stats.dim(1) + t) * kCrossEntropyStats; };
  WholeRow row{{kLowestMax, 0.0f}, 0.0f};
  for (int64_t r = 0; r < ranks; ++r) row.softmax.max = std::max(row.softmax.max, of_rank(r)[0]);
  for (int64_t r = 0; r < ranks; ++r) {
    row.softmax.sum += of_rank(r)[1] * exp_fast(of_rank(r)[0] - row.softmax.max);
    row.target_logit += of_rank(r)[2];
  }
  return row;
}

}  // namespace cpu

void cross_entropy_stats(const CrossEntropyStats& args, Stream& stream) {
  const int64_t tokens = args.logits.dim(0);
  const DType compute = args.logits.dtype();
  expect_tensor(args.logits, "cross_entropy_stats logits", compute, {tokens, args.logits.dim(1)});
  expect_tensor(args.targets, "cross_entropy_stats targets", DType::kInt32, {tokens});
  expect_tensor(args.stats, "cross_entropy_stats stats", DType::kFloat32, {tokens, kCrossEntropyStats});
  const OpTimer timer(stream, "cross_entropy_stats", args.logits.bytes());
  if (ran_elsewhere<cuda::cross_entropy_stats>(args, stream)) return;
  cpu::with_compute_dtype(compute, [&]<typename T>() {
#pragma omp parallel for
    for (int64_t t = 0; t < tokens; ++t) cpu::cross_entropy_stats_row<T>(args, t);
  });
}

void cross_entropy_parallel(const CrossEntropyParallel& args, Stream& stream) {
  const int64_t tokens = args.logits.dim(0);
  const int64_t vocab = args.logits.dim(1);
  const DType compute = args.logits.dtype();
  expect_tensor(args.logits, "cross_entropy_parallel logits", compute, {tokens, vocab});
  expect_tensor(args.losses, "cross_entropy_parallel losses", DType::kFloat32, {tokens});
  expect_tensor(args.targets, "cross_entropy_parallel targets", DType::kInt32, {tokens});
  expect_tensor(args.stats, "cross_entropy_parallel stats", DType::kFloat32,
                {args.stats.dim(0), tokens, kCrossEntropyStats});
  if (args.d_logits.defined())
    expect_tensor(args.d_logits, "cross_entropy_parallel d_logits", compute, {tokens, vocab});
  if (args.z_losses.defined())
    expect_tensor(args.z_losses, "cross_entropy_parallel z_losses", DType::kFloat32, {tokens});
  const int64_t passes = args.d_logits.defined() ? 2 : 0;
  const OpTimer timer(stream, "cross_entropy_parallel", passes * args.logits.bytes() + args.stats.bytes());
  if (ran_elsewhere<cuda::cross_entropy_parallel>(args, stream)) return;
  cpu::with_compute_dtype(compute, [&]<typename T>() {
    const auto find_row = [&](int64_t t, const T*, int64_t) { return cpu::combine_ranks(args.stats, t); };
#pragma omp parallel for
    for (int64_t t = 0; t < tokens; ++t) cpu::cross_entropy_row<T>(args, t, args.vocab_begin, find_row);
  });
}

}  // namespace octavo

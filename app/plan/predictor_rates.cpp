#include "app/plan/predictor_rates.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"

namespace octavo {

namespace {

// Time of a matmul kernel's launch and of its first and last waves. Matmuls and attention were fitted to the 1.8B model
// with 1 x 1024 tokens (docs/benchmarks/2026-11-20-one-gpu.md); the other values are assumed.
constexpr double kProductOverhead_s = 5e-6;
constexpr double kMemoryOverhead_s = 2e-6;
constexpr double kAttentionForwardOverhead_s = 12e-6;
constexpr double kAttentionBackwardOverhead_s = 40e-6;
// Rate of attention inside of a step divided by its rate alone, measured on the H200: 626 of 746 TFLOP/s forward and
// 493 of 550 backward.
constexpr double kAttentionForwardInStep = 0.84;
constexpr double kAttentionBackwardInStep = 0.90;
// Attention within documents (kernels/attention/padded_documents.h) computes the scores of padded documents with cuDNN,
// and copies them. Its time is that of attention without a mask times padding * share / kCudnnShare + copies, where
// `share` is the share of the scores that lie within documents. Padding is kMostPadding for short documents and 1 if a
// document fills the sequence. kMostPadding is an assumption, kCudnnShare was measured in steps, and the copies follow
// from steps of the 1.8B with documents of 1,024 tokens on average, where attention took 16.3 ms forward and 38.4 ms
// backward (docs/benchmarks/2026-11-22-documents.md). Other lengths were not measured.
constexpr double kMostPadding = 1.75;
constexpr double kCudnnShare = 0.81;
constexpr double kForwardCopies = 0.35;
constexpr double kBackwardCopies = 0.15;
// Share of a large copy's bandwidth that memory-bound ops reach: 3,500 to 4,060 of 4,250 GB/s.
constexpr double kMemoryShare = 0.88;
// Share of kMemoryShare that memory-bound ops reach if they also cast their result to FP8. Fitted to steps of the 1.8B
// model with the recipes delayed and blockwise.
constexpr double kCastingShare = 0.73;
// Memory-bound ops whose properties differ from the default.
constexpr auto kMemoryOps = std::to_array<MemoryOp>({
    {.name = "adamw", .kind = CostKind::kOptimizer},
    {.name = "ema", .kind = CostKind::kOptimizer},
    {.name = "muon_momentum", .kind = CostKind::kOptimizer},
    {.name = "muon_rows", .kind = CostKind::kOptimizer},
    {.name = "muon_polynomial", .kind = CostKind::kOptimizer},
    {.name = "muon_update", .kind = CostKind::kOptimizer},
    {.name = "sum_of_squares", .kind = CostKind::kOptimizer},
    {.name = "cross_entropy", .share = 0.75},
    {.name = "cross_entropy_stats", .share = 0.75},
    {.name = "cross_entropy_parallel", .share = 0.75},
});
constexpr MemoryOp kOtherOp;

double squared_distance(const ProductRate& p, const ProductSize& size) {
  const auto octaves = [](int64_t a, int64_t b) { return std::log2(static_cast<double>(a) / static_cast<double>(b)); };
  const double m = octaves(p.m, size.m);
  const double n = octaves(p.n, size.n);
  const double k = octaves(p.k, size.k);
  return m * m + n * n + k * k;
}

// Returns the time of attention within documents divided by the time that its FLOPs take at the rate of attention
// without a mask. CPUs compute only the scores within documents. 1 without documents.
double time_within_documents(std::optional<double> share, bool gpu, double copies) {
  if (!share || !gpu) return 1;
  const double padding = kMostPadding - (kMostPadding - 1) * *share;
  return padding / kCudnnShare + copies / *share;
}

}  // namespace

double product_rate(const MachineRates& machine, const std::string& precision, bool fast_accumulation,
                    const ProductSize& size) {
  const auto known = machine.product_flops.find(precision);
  CHECK_INPUT(known != machine.product_flops.end(), "the machine file of {} has no rate of {} matmuls", machine.name,
              precision);
  constexpr double kSame = 1e-6;  // Keeps the weight of a shape finite that equals a measured one.
  double weights = 0;
  double sum = 0;
  for (const ProductRate& p : machine.products) {
    if (p.precision != precision || p.fast_accumulation != fast_accumulation) continue;
    const double distance = squared_distance(p, size) + kSame;
    const double weight = 1 / (distance * distance);
    weights += weight;
    sum += weight * p.flops;
  }
  return weights > 0 ? sum / weights : known->second;
}

double product_seconds(const MachineRates& machine, const std::string& precision, bool fast_accumulation,
                       const ProductSize& size) {
  const double overhead = machine.multiprocessors > 0 ? kProductOverhead_s : 0;
  return size.flops() / product_rate(machine, precision, fast_accumulation, size) + overhead;
}

double attention_forward_flops(const SdpaShape& s) {
  const auto of = [](int64_t value) { return static_cast<double>(value); };
  return 2 * of(s.batch) * of(s.num_heads) * of(s.seq_len) * of(s.seq_len) * of(s.head_dim);
}

double op_seconds(const MachineRates& machine, const Op& op, std::optional<double> attended_share) {
  const bool gpu = machine.multiprocessors > 0;
  switch (op.bound) {
    case OpBound::kMatmul:
    case OpBound::kFp8Matmul:
      return product_seconds(machine, op.precision, op.fast_accumulation, {op.m, op.n, op.k});
    case OpBound::kAttentionForward:
      return op.flops / machine.attention.forward_flops / (gpu ? kAttentionForwardInStep : 1) *
                 time_within_documents(attended_share, gpu, kForwardCopies) +
             (gpu ? kAttentionForwardOverhead_s : 0);
    case OpBound::kAttentionBackward:
      return op.flops / machine.attention.backward_flops / (gpu ? kAttentionBackwardInStep : 1) *
                 time_within_documents(attended_share, gpu, kBackwardCopies) +
             (gpu ? kAttentionBackwardOverhead_s : 0);
    case OpBound::kMemory: {
      const double share = kMemoryShare * memory_op(op.name).share * (op.casts ? kCastingShare : 1);
      return op.bytes / (machine.memory_bytes_per_s * share) + (op.bytes > 0 ? kMemoryOverhead_s : 0);
    }
    case OpBound::kCommunication:
      return 0;
  }
  return 0;
}

const MemoryOp& memory_op(std::string_view name) {
  const auto* found =
      std::find_if(kMemoryOps.begin(), kMemoryOps.end(), [&](const MemoryOp& op) { return op.name == name; });
  return found != kMemoryOps.end() ? *found : kOtherOp;
}

}  // namespace octavo

#include "app/plan/predictor_rates.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"

namespace octavo {

namespace {

// Time of a matmul kernel's launch and of its first and last waves. Matmuls and attention were fitted to the 1.8B model
// with 1 x 1024 tokens (docs/benchmarks/one-gpu.md); the other values are assumed.
constexpr double kProductOverhead_s = 5e-6;
constexpr double kMemoryOverhead_s = 2e-6;
// Attention on a GPU. in_step is the rate inside of a step divided by the rate alone, measured on the H200: 626 of 746
// TFLOP/s forward and 493 of 550 backward. Within documents the FLOPs take `flops` times as long as without a mask, and
// moving the inputs and outputs `passes` times takes time in addition. A document moves as much as if it had
// kTokensOfPartialTiles more tokens. These three were fitted to FlashAttention
// (kernels/flash_attention/flash_documents.h) in steps of the 1.8B on an H100 with documents of 64 to 4,096 tokens on
// average (docs/benchmarks/attention.md). The factor 0.85 is a result of the fit and not of a measurement.
struct AttentionCost {
  double overhead_s, in_step, flops, passes;
};
constexpr AttentionCost kAttentionForward{12e-6, 0.84, 1, 1};
constexpr AttentionCost kAttentionBackward{40e-6, 0.90, 0.85, 3.4};
constexpr double kTokensOfPartialTiles = 85;
// Share of a large copy's bandwidth that memory-bound ops reach: 2,670 to 2,900 of 3,004 GB/s on an H100.
constexpr double kMemoryShare = 0.92;
// Most bytes per second that memory-bound ops move if they also cast their result to FP8: 2,810 to 2,900 GB/s on an
// H100, and 2,730 GB/s on an H200, whose memory is faster.
constexpr double kCastingBytes = 2.8e12;
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

// Returns the time of attention. `flops_per_s` is its rate alone and without documents, and document_length the mean
// number of tokens of a document, or 0 without documents. CPUs compute only the scores within documents.
double attention_seconds(const MachineRates& machine, const Op& op, double flops_per_s, const AttentionCost& cost,
                         int64_t document_length) {
  if (machine.multiprocessors == 0) return op.flops / flops_per_s;
  const double seconds = op.flops / flops_per_s / cost.in_step;
  if (document_length == 0) return seconds + cost.overhead_s;
  const double padding = 1 + kTokensOfPartialTiles / static_cast<double>(document_length);
  const double bytes_per_s = machine.memory_bytes_per_s * kMemoryShare;
  return cost.flops * seconds + cost.passes * padding * op.bytes / bytes_per_s + cost.overhead_s;
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

double op_seconds(const MachineRates& machine, const Op& op, int64_t document_length) {
  switch (op.bound) {
    case OpBound::kMatmul:
    case OpBound::kFp8Matmul:
      return product_seconds(machine, op.precision, op.fast_accumulation, {op.m, op.n, op.k});
    case OpBound::kAttentionForward:
      return attention_seconds(machine, op, machine.attention.forward_flops, kAttentionForward, document_length);
    case OpBound::kAttentionBackward:
      return attention_seconds(machine, op, machine.attention.backward_flops, kAttentionBackward, document_length);
    case OpBound::kMemory: {
      double bytes_per_s = machine.memory_bytes_per_s * kMemoryShare * memory_op(op.name).share;
      if (op.casts && machine.multiprocessors > 0) bytes_per_s = std::min(bytes_per_s, kCastingBytes);
      return op.bytes / bytes_per_s + (op.bytes > 0 ? kMemoryOverhead_s : 0);
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

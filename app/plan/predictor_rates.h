// Estimates the time of single ops on a machine from its measured rates.
#pragma once

#include <string_view>

#include "app/plan/machine_rates.h"
#include "app/plan/predictor.h"
#include "core/op_record.h"
#include "kernels/attention/sdpa.h"

namespace octavo {

// Returns the FLOP/s of a matmul of any size. The result is the average of the rates that were measured in this
// precision, and with this kind of accumulation if the precision has several, weighted by the inverse fourth power of
// their distance in log2 of m, n and k. Throws an InputError if the machine has no rate of the precision.
double product_rate(const MachineRates& machine, const std::string& precision, bool fast_accumulation,
                    const ProductSize& size);
double product_seconds(const MachineRates& machine, const std::string& precision, bool fast_accumulation,
                       const ProductSize& size);

// Returns the FLOPs of causal attention, counting only the causal half.
double attention_forward_flops(const SdpaShape& shape);
inline double attention_backward_flops(const SdpaShape& shape) { return 2.5 * attention_forward_flops(shape); }

// Returns the time of an op inside of a step, where the GPU is warmer than when single ops are measured. With
// documents, the FLOPs of attention are those within them, and document_length is the mean number of tokens of a
// document, else 0. Returns 0 for a collective.
double op_seconds(const MachineRates& machine, const Op& op, int64_t document_length = 0);

// Properties of a kind of memory-bound op.
struct MemoryOp {
  std::string_view name;
  double share = 1;  // Share of the usual memory bandwidth that the op reaches.
  CostKind kind = CostKind::kMemory;
};
const MemoryOp& memory_op(std::string_view name);

}  // namespace octavo

// The times of single operations on a machine, from its measured rates: the parts that predict_step adds up.
#pragma once

#include <string_view>

#include "app/plan/machine_rates.h"
#include "app/plan/predictor.h"
#include "core/op_record.h"
#include "kernels/attention/sdpa.h"

namespace octavo {

// FLOP/s of a product of any size: those of the sizes measured in that precision (and kind of accumulation, where there
// are any), weighted by the inverse fourth power of their distance in log2 of m, n and k. Throws InputError when the
// machine has no rate of the precision.
double product_rate(const MachineRates& machine, const std::string& precision, bool fast_accumulation,
                    const ProductSize& size);
double product_seconds(const MachineRates& machine, const std::string& precision, bool fast_accumulation,
                       const ProductSize& size);

// Returns the FLOPs of the causal half.
double attention_forward_flops(const SdpaShape& shape);
inline double attention_backward_flops(const SdpaShape& shape) { return 2.5 * attention_forward_flops(shape); }

// An op inside a step, where the machine is warmer than in measurements of single ops; 0 of a collective.
double op_seconds(const MachineRates& machine, const Op& op);

// How ops bound by memory differ, by name.
struct MemoryOp {
  std::string_view name;
  double share = 1;  // of the rate that the others reach
  CostKind kind = CostKind::kMemory;
};
const MemoryOp& memory_op(std::string_view name);

}  // namespace octavo

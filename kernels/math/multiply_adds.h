// Float32 multiply-adds in registers, for `octavo doctor`. Their rate is an upper bound for matrix multiplication on
// these cores.
#pragma once

#include <cstdint>

namespace octavo::cpu {

// Every OpenMP thread executes `rounds` rounds of independent multiply-adds in the widest vectors of this processor.
// Returns the FLOPs of all threads, two per multiply-add.
double run_multiply_adds(int64_t rounds);

}  // namespace octavo::cpu

// Float32 multiply-adds in registers: the rate that no product on these cores can exceed, for `octavo doctor`.
#pragma once

#include <cstdint>

namespace octavo::cpu {

// Every OpenMP thread does `rounds` rounds of independent multiply-adds in the widest vectors of this processor.
// Returns the FLOPs of all threads, two a multiply-add.
double run_multiply_adds(int64_t rounds);

}  // namespace octavo::cpu

// Loop of kernels/math/multiply_adds.h, which two files compile for different vector instructions.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/error.h"

namespace octavo::cpu {

// Number of independent sums, enough to hide the latency of multiply-adds in two units.
inline constexpr int kChains = 12;

// Runs `loop` on every thread and returns the FLOPs. `loop(rounds)` returns a sum of its results, so that the compiler
// cannot remove the computation.
template <typename Loop>
double run_on_every_thread(int64_t rounds, int64_t lanes, Loop loop) {
  float total = 0;
  int64_t threads = 0;
#pragma omp parallel reduction(+ : total, threads)
  {
    total += loop(rounds);
    threads += 1;
  }
  CHECK(std::isfinite(total), "the sum of the multiply-adds is {}, expected a finite number", total);
  return 2.0 * static_cast<double>(rounds) * static_cast<double>(kChains * lanes * threads);
}

}  // namespace octavo::cpu

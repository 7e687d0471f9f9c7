// The loop of kernels/math/multiply_adds.h, which its two files compile for their vectors.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/error.h"

namespace octavo::cpu {

// Independent sums, enough to hide the latency of a multiply-add in two units.
inline constexpr int kChains = 12;

// FLOPs of `rounds` on every thread. `loop(rounds)` returns a sum of what it computed, lest the compiler leave it out.
template <typename Loop>
double run_on_every_thread(int64_t rounds, int64_t lanes, Loop loop) {
  float total = 0;
  int64_t threads = 0;
#pragma omp parallel reduction(+ : total, threads)
  {
    total += loop(rounds);
    threads += 1;
  }
  CHECK(std::isfinite(total), "multiply-adds of ordinary numbers gave {}", total);
  return 2.0 * static_cast<double>(rounds) * static_cast<double>(kChains * lanes * threads);
}

}  // namespace octavo::cpu

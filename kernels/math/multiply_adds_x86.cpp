#include "kernels/math/multiply_adds.h"
#include "kernels/math/multiply_adds_loop.h"

namespace octavo::cpu {

namespace {

constexpr float kFactor = 0.75f;  // Sums converge to kTerm / (1 - kFactor) = 2, so they stay finite.
constexpr float kTerm = 0.5f;

using Avx2 = float __attribute__((vector_size(32)));
using Avx512 = float __attribute__((vector_size(64)));

float loop_avx2(int64_t rounds) {
  Avx2 sums[kChains];
  // The sums start with different values, so that the compiler cannot merge them.
  for (int i = 0; i < kChains; ++i) sums[i] = Avx2{} - static_cast<float>(i);
  for (int64_t i = 0; i < rounds; ++i) {
    for (Avx2& sum : sums) sum = sum * kFactor + kTerm;
  }
  float total = 0;
  for (const Avx2& sum : sums) total += sum[0];
  return total;
}

__attribute__((target("avx512f"))) float loop_avx512(int64_t rounds) {
  Avx512 sums[kChains];
  // The sums start with different values, so that the compiler cannot merge them.
  for (int i = 0; i < kChains; ++i) sums[i] = Avx512{} - static_cast<float>(i);
  for (int64_t i = 0; i < rounds; ++i) {
    for (Avx512& sum : sums) sum = sum * kFactor + kTerm;
  }
  float total = 0;
  for (const Avx512& sum : sums) total += sum[0];
  return total;
}

}  // namespace

double run_multiply_adds(int64_t rounds) {
  if (__builtin_cpu_supports("avx512f")) return run_on_every_thread(rounds, 16, loop_avx512);
  return run_on_every_thread(rounds, 8, loop_avx2);
}

}  // namespace octavo::cpu

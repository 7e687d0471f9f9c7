#include "kernels/math/multiply_adds.h"
#include "kernels/math/multiply_adds_loop.h"

namespace octavo::cpu {

namespace {

constexpr float kFactor = 0.75f;  // Sums converge to kTerm / (1 - kFactor) = 2, so they stay finite.
constexpr float kTerm = 0.5f;

using Vector = float __attribute__((vector_size(16)));

float loop(int64_t rounds) {
  Vector sums[kChains];
  // The sums start with different values, so that the compiler cannot merge them.
  for (int i = 0; i < kChains; ++i) sums[i] = Vector{} - static_cast<float>(i);
  for (int64_t i = 0; i < rounds; ++i) {
    for (Vector& sum : sums) sum = sum * kFactor + kTerm;
  }
  float total = 0;
  for (const Vector& sum : sums) total += sum[0];
  return total;
}

}  // namespace

double run_multiply_adds(int64_t rounds) { return run_on_every_thread(rounds, 4, loop); }

}  // namespace octavo::cpu

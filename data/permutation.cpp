#include "data/permutation.h"

#include <algorithm>
#include <bit>

#include "core/error.h"
#include "core/mix_bits.h"

namespace octavo {
namespace {

// Independent 64-bit draws from a key: SplitMix64.
class Draws {
 public:
  explicit Draws(uint64_t key) : state_(key) {}
  uint64_t operator()() { return finalize_bits(state_ += kSplitMixIncrement); }

 private:
  uint64_t state_;
};

}  // namespace

// The additions keep (0, 0, 0) away from the fixed point 0 of finalize_bits, and keep the three values from cancelling
// each other.
uint64_t hash_of_epoch(uint64_t seed, uint64_t dataset, uint64_t epoch) {
  return finalize_bits(finalize_bits(finalize_bits(seed + 1) + dataset + 1) + epoch + 1);
}

Permutation::Permutation(uint64_t n, uint64_t seed, uint64_t dataset, uint64_t epoch) : n_(n) {
  CHECK(n >= 1 && n <= uint64_t{1} << 62, "the permutation has {} elements, expected 1 to 2^62", n);
  const int bits = static_cast<int>(std::bit_width(n - 1));
  mask_ = (uint64_t{1} << bits) - 1;
  shift_ = std::max(1, (bits + 1) / 2);

  Draws draw(hash_of_epoch(seed, dataset, epoch));
  // Choosing a = 5 mod 8 selects the half of a = 1 mod 4 in which a - 1 has no further factor of two (the greatest
  // potency: Knuth, The Art of Computer Programming 2, 3.2.1.3). The other half includes multipliers as poor as 1.
  const Steps one_step{.a = (draw() & ~uint64_t{7}) | 5, .c = draw() | 1};
  start_ = draw() & mask_;
  for (Round& round : rounds_) round = {.xor_key = draw() & mask_, .multiplier = draw() | 1};
  tabulate(one_step, bits);
}

void Permutation::tabulate(Steps one_step, int bits) {
  Steps unit = one_step;  // Map of the LCG steps that one unit of the current digit stands for.
  for (int low = 0; low < bits; low += kDigitBits) {
    const uint64_t used = uint64_t{1} << std::min(kDigitBits, bits - low);  // Number of values of the topmost digit.
    const size_t base = table_.size();
    table_.resize(base + kDigitValues);
    for (uint64_t value = 1; value < used; ++value) {
      const Steps& before = table_[base + value - 1];
      table_[base + value] = {.a = before.a * unit.a, .c = unit.a * before.c + unit.c};
    }
    const Steps& last = table_[base + used - 1];
    unit = {.a = last.a * unit.a, .c = unit.a * last.c + unit.c};
  }
}

}  // namespace octavo

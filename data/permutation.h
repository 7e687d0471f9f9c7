// The order of the windows in an epoch: a pseudo-random permutation of [0, n), evaluated one element at a time. No list
// is built, so 10 billion windows cost as much as ten, and any position is reached directly.
//
// With k = ceil(log2 n) bits and m = 2^k, position i passes through three bijections:
//
//   1. A linear congruential generator, x_{t+1} = (a x_t + c) mod m, at step i. By the theorem of Hull and Dobell
//      (Random Number Generators, SIAM Review 4, 1962) its period is the whole of m exactly when c is odd and a = 1 mod
//      4 (m a power of two, at least 4): within one period every state occurs once, so i -> x_i is a bijection of [0,
//      m). Jump-ahead: the map "t steps" is affine again, x -> A_t x + C_t, and composing two such maps adds their
//      steps (A_{s+t} = A_s A_t, C_{s+t} = A_t C_s + C_t). The maps for the digits of i in base 64 are tabulated, so
//      x_i takes ceil(k/6) multiplications instead of i.
//   2. An output permutation of k bits, several rounds of: xor with a key, x ^= x >> s, multiply by an odd key mod m.
//      Each is invertible on k bits. It is needed because bit b of a bare LCG modulo 2^k has period 2^(b+1): the lowest
//      bit alternates, so even and odd windows would take turns.
//   3. Cycle-walking: m may exceed n, by less than a factor 2; while the result is not below n, it goes through 1 and 2
//      again. That follows the cycle of i in the permutation of [0, m) to the next element below n, which is a
//      permutation of [0, n), and takes fewer than two rounds on average.
//
// The constants a, c, x_0 and the keys are drawn from a hash of (seed, dataset, epoch).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace octavo {

// Returns the hash from which an epoch of a dataset draws.
uint64_t hash_of_epoch(uint64_t seed, uint64_t dataset, uint64_t epoch);

// Immutable and safe to use from several threads.
class Permutation {
 public:
  // Throws an Error unless 1 <= n <= 2^62.
  Permutation(uint64_t n, uint64_t seed, uint64_t dataset, uint64_t epoch);

  // Returns the image of position i, 0 <= i < n.
  uint64_t operator()(uint64_t i) const {
    uint64_t x = i;
    do {
      x = scramble(state_after(x));
    } while (x >= n_);
    return x;
  }

 private:
  // The affine map of a number of LCG steps.
  struct Steps {
    uint64_t a = 1, c = 0;
    uint64_t operator()(uint64_t x) const { return a * x + c; }
  };
  struct Round {
    uint64_t xor_key, multiplier;
  };
  static constexpr int kDigitBits = 6;
  static constexpr uint64_t kDigitValues = uint64_t{1} << kDigitBits;

  void tabulate(Steps one_step, int bits);

  uint64_t state_after(uint64_t steps) const {
    uint64_t x = start_;
    for (const Steps* digit = table_.data(); digit < table_.data() + table_.size(); digit += kDigitValues) {
      x = digit[steps % kDigitValues](x);
      steps /= kDigitValues;
    }
    return x & mask_;
  }

  uint64_t scramble(uint64_t x) const {
    for (const Round& round : rounds_) {
      x ^= round.xor_key;
      x ^= x >> shift_;
      x = (x * round.multiplier) & mask_;
    }
    return x ^ (x >> shift_);
  }

  uint64_t n_, mask_, start_ = 0;
  int shift_ = 1;
  std::vector<Steps> table_;  // LCG maps by [digit of the position][value of the digit].
  std::array<Round, 3> rounds_{};
};

}  // namespace octavo

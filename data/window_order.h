// The order in which the windows of a dataset are drawn.
//
// A dataset is one long stream of M tokens (data/tokens/token_stream.h), whose end is joined to its beginning. A window
// is seq_len + 1 consecutive tokens: inputs are the first seq_len, targets the last. M tokens make
//
//   W = max(1, floor(M / (seq_len + 1)))
//
// windows per epoch. Window w of epoch e begins at token (shift(e) + w (seq_len + 1)) mod M. So the windows of an epoch
// do not overlap, and at most seq_len tokens are left out, different ones in every epoch. shift(0) is 0. Later shifts
// are drawn from hash(seed, dataset, e), so that windows begin elsewhere in each epoch. Read k is window
// permutation(e)[k mod W] of epoch e = k div W. So the window of any read is found directly, and every window occurs
// once per epoch.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "data/config.h"

namespace octavo {

// The order of the windows in an epoch: a pseudo-random permutation of [0, n), evaluated one element at a time. No list
// is built, so 10 billion windows cost as much as ten, and any position is reached directly.
//
// With k = ceil(log2 n) bits and m = 2^k, position i passes through three bijections:
//
//   1. A linear congruential generator, x_{t+1} = (a x_t + c) mod m, at step i. By the theorem of Hull and Dobell
//      (Random Number Generators, SIAM Review 4, 1962) its period is the whole of m exactly when c is odd and a = 1 mod
//      4 (m a power of two, at least 4): within one period every state occurs once, so i -> x_i is a bijection of [0,
//      m). Jump-ahead: the map "t steps" is affine again, x -> A_t x + C_t, and composing two such maps adds their
//      steps (A_{s+t} = A_s A_t, C_{s+t} = A_t C_s + C_t). So x_i takes k multiplications by the maps of 1, 2, 4, ...
//      steps instead of i.
//   2. An output permutation of k bits, several rounds of: xor with a key, x ^= x >> s, multiply by an odd key mod m.
//      Each is invertible on k bits. It is needed because bit b of a bare LCG modulo 2^k has period 2^(b+1): the lowest
//      bit alternates, so even and odd windows would take turns.
//   3. Cycle-walking: m may exceed n, by less than a factor 2; while the result is not below n, it goes through 1 and 2
//      again. That follows the cycle of i in the permutation of [0, m) to the next element below n, which is a
//      permutation of [0, n), and takes fewer than two rounds on average.
//
// The constants a, c, x_0 and the keys are drawn from a hash of (seed, dataset, epoch). Immutable and safe to use from
// several threads.
class Permutation {
 public:
  // Throws an Error unless 1 <= n <= 2^62.
  Permutation(uint64_t n, uint64_t seed, uint64_t dataset, uint64_t epoch);

  // Returns the image of position i, 0 <= i < n.
  uint64_t operator()(uint64_t i) const;

 private:
  // The affine map of a number of LCG steps.
  struct Steps {
    uint64_t a = 1, c = 0;
  };
  struct Round {
    uint64_t xor_key, multiplier;
  };

  uint64_t state_after(uint64_t steps) const;
  uint64_t scramble(uint64_t x) const;

  uint64_t n_, mask_, start_ = 0;
  int shift_ = 1;
  Steps one_step_;
  std::array<Round, 3> rounds_{};
};

struct Window {
  int64_t epoch = 0;
  int64_t index = 0;  // w.
  int64_t begin = 0;  // Position of the window's first token in the stream.
  bool operator==(const Window&) const = default;
};

struct WindowOrderOptions {
  int64_t num_tokens = 1;  // Number of tokens of the dataset (M), at least 1.
  int64_t seq_len = 1;
  // Order of the windows. kNone reads them in file order without shifts.
  Shuffle shuffle = Shuffle::kLcg;
  uint64_t seed = 0;
  int64_t dataset = 0;  // Number of the dataset, from which its order is drawn.
};

// Used by one thread at a time, because it caches the permutation of the last epoch.
class WindowOrder {
 public:
  explicit WindowOrder(const WindowOrderOptions& options);

  int64_t num_windows() const { return num_windows_; }  // W.
  Window at(int64_t read);                              // Returns the window of read k >= 0.

 private:
  int64_t shift(int64_t epoch) const;

  WindowOrderOptions options_;
  int64_t num_windows_;
  int64_t epoch_ = -1;  // Epoch whose permutation and shift are cached.
  int64_t shift_ = 0;
  std::optional<Permutation> permutation_;
};

}  // namespace octavo

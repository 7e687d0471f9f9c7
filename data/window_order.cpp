#include "data/window_order.h"

#include <algorithm>
#include <bit>

#include "core/error.h"
#include "core/mix_bits.h"

namespace octavo {

namespace {

// Holds the product of two 64-bit integers.
__extension__ typedef unsigned __int128 Wide;

// Returns the hash from which an epoch of a dataset draws. The additions keep (0, 0, 0) away from the fixed point 0 of
// finalize_bits, and keep the three values from cancelling each other.
uint64_t hash_of_epoch(uint64_t seed, uint64_t dataset, uint64_t epoch) {
  return finalize_bits(finalize_bits(finalize_bits(seed + 1) + dataset + 1) + epoch + 1);
}

}  // namespace

Permutation::Permutation(uint64_t n, uint64_t seed, uint64_t dataset, uint64_t epoch) : n_(n) {
  CHECK(n >= 1 && n <= uint64_t{1} << 62, "the permutation has {} elements, expected 1 to 2^62", n);
  const int bits = static_cast<int>(std::bit_width(n - 1));
  mask_ = (uint64_t{1} << bits) - 1;
  shift_ = std::max(1, (bits + 1) / 2);

  // Independent 64-bit draws: SplitMix64.
  auto draw = [state = hash_of_epoch(seed, dataset, epoch)]() mutable {
    return finalize_bits(state += kSplitMixIncrement);
  };
  // Choosing a = 5 mod 8 selects the half of a = 1 mod 4 in which a - 1 has no further factor of two (the greatest
  // potency: Knuth, The Art of Computer Programming 2, 3.2.1.3). The other half includes multipliers as poor as 1.
  one_step_ = {.a = (draw() & ~uint64_t{7}) | 5, .c = draw() | 1};
  start_ = draw() & mask_;
  for (Round& round : rounds_) round = {.xor_key = draw() & mask_, .multiplier = draw() | 1};
}

uint64_t Permutation::operator()(uint64_t i) const {
  uint64_t x = i;
  do {
    x = scramble(state_after(x));
  } while (x >= n_);
  return x;
}

uint64_t Permutation::state_after(uint64_t steps) const {
  uint64_t x = start_;
  for (Steps jump = one_step_; steps != 0; steps >>= 1) {
    if (steps & 1) x = jump.a * x + jump.c;
    jump = {.a = jump.a * jump.a, .c = jump.a * jump.c + jump.c};
  }
  return x & mask_;
}

uint64_t Permutation::scramble(uint64_t x) const {
  for (const Round& round : rounds_) {
    x ^= round.xor_key;
    x ^= x >> shift_;
    x = (x * round.multiplier) & mask_;
  }
  return x ^ (x >> shift_);
}

WindowOrder::WindowOrder(const WindowOrderOptions& options)
    : options_(options), num_windows_(std::max<int64_t>(1, options.num_tokens / (options.seq_len + 1))) {
  CHECK(options.num_tokens >= 1 && options.seq_len >= 1,
        "windows of {} tokens in a stream of {} tokens, expected at least one input and one token", options.seq_len + 1,
        options.num_tokens);
}

// Draws from [0, M): the upper half of a 128-bit product, which avoids the bias of a remainder.
int64_t WindowOrder::shift(int64_t epoch) const {
  if (epoch == 0 || options_.shuffle == Shuffle::kNone) return 0;
  constexpr uint64_t kShifts = 0x7368696674;  // Separates this draw from those of the permutation.
  const uint64_t draw = finalize_bits(
      hash_of_epoch(options_.seed, static_cast<uint64_t>(options_.dataset), static_cast<uint64_t>(epoch)) ^ kShifts);
  return static_cast<int64_t>((Wide{draw} * static_cast<uint64_t>(options_.num_tokens)) >> 64);
}

Window WindowOrder::at(int64_t read) {
  Window window{.epoch = read / num_windows_, .index = read % num_windows_, .begin = 0};
  if (window.epoch != epoch_) {
    epoch_ = window.epoch;
    shift_ = shift(epoch_);
    if (options_.shuffle == Shuffle::kLcg) {
      permutation_.emplace(static_cast<uint64_t>(num_windows_), options_.seed, static_cast<uint64_t>(options_.dataset),
                           static_cast<uint64_t>(epoch_));
    }
  }
  if (permutation_) window.index = static_cast<int64_t>((*permutation_)(static_cast<uint64_t>(window.index)));
  // Without the shift every window ends within the stream of M tokens, and the shift is below M, so the sum is below 2
  // M.
  window.begin = (shift_ + window.index * (options_.seq_len + 1)) % options_.num_tokens;
  return window;
}

}  // namespace octavo

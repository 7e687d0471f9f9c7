#include "data/window_order.h"

#include <algorithm>

#include "core/error.h"
#include "core/mix_bits.h"

namespace octavo {

namespace {

// Holds the product of two 64-bit integers.
__extension__ typedef unsigned __int128 Wide;

}  // namespace

WindowOrder::WindowOrder(const WindowOrderOptions& options)
    : options_(options), num_windows_(std::max<int64_t>(1, options.num_tokens / (options.seq_len + 1))) {
  CHECK(options.num_tokens >= 1 && options.seq_len >= 1,
        "windows of {} tokens in a row of {} tokens, expected at least one input and one token", options.seq_len + 1,
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

Window WindowOrder::at(int64_t draw) {
  Window window{.epoch = draw / num_windows_, .index = draw % num_windows_, .begin = 0};
  if (window.epoch != epoch_) {
    epoch_ = window.epoch;
    shift_ = shift(epoch_);
    if (options_.shuffle == Shuffle::kLcg) {
      permutation_.emplace(static_cast<uint64_t>(num_windows_), options_.seed, static_cast<uint64_t>(options_.dataset),
                           static_cast<uint64_t>(epoch_));
    }
  }
  if (permutation_) window.index = static_cast<int64_t>((*permutation_)(static_cast<uint64_t>(window.index)));
  // Without the shift every window ends within the row of M tokens, and the shift is below M, so the sum is below 2 M.
  window.begin = (shift_ + window.index * (options_.seq_len + 1)) % options_.num_tokens;
  return window;
}

}  // namespace octavo

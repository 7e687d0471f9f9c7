// The order in which the windows of a dataset are drawn.
//
// A dataset is one long row of M tokens (data/tokens/token_row.h), its end joined to its beginning. A window is seq_len
// + 1 consecutive ones: inputs are the first seq_len, targets the last. M tokens make
//
//   W = max(1, floor(M / (seq_len + 1)))
//
// windows an epoch. Window w of epoch e begins at token (shift(e) + w (seq_len + 1)) mod M, so the windows of an epoch
// do not overlap, and at most seq_len tokens, other ones every epoch, are left out of it; shift(0) = 0, later shifts
// are drawn from hash(seed, dataset, e) and cut the documents elsewhere. Draw k is window permutation(e)[k mod W] of
// epoch e = k div W (data/permutation.h). So any draw is found at once, and every window comes once an epoch.
#pragma once

#include <cstdint>
#include <optional>

#include "data/config.h"
#include "data/permutation.h"

namespace octavo {

struct Window {
  int64_t epoch = 0;
  int64_t index = 0;  // w
  int64_t begin = 0;  // its first token in the row
  bool operator==(const Window&) const = default;
};

struct WindowOrderOptions {
  int64_t num_tokens = 1;  // M, at least 1
  int64_t seq_len = 1;
  Shuffle shuffle = Shuffle::kLcg;  // kNone: the windows in the order of the row, without shifts
  uint64_t seed = 0;
  int64_t dataset = 0;  // its number, which tells its order from that of others
};

// Used by one thread at a time: it keeps the permutation of the epoch asked for last.
class WindowOrder {
 public:
  explicit WindowOrder(const WindowOrderOptions& options);

  int64_t num_windows() const { return num_windows_; }  // W
  Window at(int64_t draw);                              // of draw k >= 0

 private:
  int64_t shift(int64_t epoch) const;

  WindowOrderOptions options_;
  int64_t num_windows_;
  int64_t epoch_ = -1;  // whose permutation and shift are at hand
  int64_t shift_ = 0;
  std::optional<Permutation> permutation_;
};

}  // namespace octavo

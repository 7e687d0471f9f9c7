// The order in which the windows of a dataset are drawn.
//
// A dataset is one long row of M tokens (data/tokens/token_row.h), whose end is joined to its beginning. A window is
// seq_len + 1 consecutive tokens: inputs are the first seq_len, targets the last. M tokens make
//
//   W = max(1, floor(M / (seq_len + 1)))
//
// windows per epoch. Window w of epoch e begins at token (shift(e) + w (seq_len + 1)) mod M. So the windows of an epoch
// do not overlap, and at most seq_len tokens are left out, other ones in every epoch. shift(0) is 0. Later shifts are
// drawn from hash(seed, dataset, e), so that each epoch cuts the documents elsewhere. Draw k is window permutation(e)[k
// mod W] of epoch e = k div W (data/permutation.h). So any draw is found directly, and every window occurs once per
// epoch.
#pragma once

#include <cstdint>
#include <optional>

#include "data/config.h"
#include "data/permutation.h"

namespace octavo {

struct Window {
  int64_t epoch = 0;
  int64_t index = 0;  // w.
  int64_t begin = 0;  // Position of the window's first token in the row.
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
  Window at(int64_t draw);                              // Returns the window of draw k >= 0.

 private:
  int64_t shift(int64_t epoch) const;

  WindowOrderOptions options_;
  int64_t num_windows_;
  int64_t epoch_ = -1;  // Epoch whose permutation and shift are cached.
  int64_t shift_ = 0;
  std::optional<Permutation> permutation_;
};

}  // namespace octavo

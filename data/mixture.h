// Chooses the dataset of each sample: the one whose number of samples is furthest below the share that its weight gives
// it.
//
// Let the integer weights w_d sum to W, and let n_d be the number of samples of dataset d among the first g. Sample g
// takes the dataset with the largest w_d g - W n_d, and the first one of equals. No dataset is ever a whole sample
// ahead: these numbers sum to 0, so the largest is at least 0, and n_d - g w_d / W < 1 after the choice. Hence the
// counts are exact after every W samples, where the differences are integers above -1 that sum to 0. With two datasets
// neither is ever a sample behind. With more datasets one may be, by up to about 2 samples in random mixtures of up to
// 12 weights.
//
// A sample far into a period is reached without walking from the beginning of the period. Before any sample b the
// counts are at most u_d = ceil(b w_d / W), because no dataset is a whole sample ahead. Two rules carry this bound from
// one sample to the next until its excess, the sum of u_d - n_d, is 0. Then the bound equals the counts.
//   1. u takes a sample as n does, from the dataset of the largest w_d g - W u_d. The bound holds: if n takes a and u
//      takes b != a, then n_a < u_a. Otherwise a would be equally far behind in both, b at least as far in n as in u,
//      and both would break the tie in the same way.
//   2. u takes nothing, and its excess falls by 1, where the excess is above 0 and the largest and the smallest
//      w_d g - W u_d differ by less than W. The bound holds: a dataset with n_d < u_d is further behind in n by W or
//      more, hence further than every dataset with n_d = u_d, so n takes one with n_d < u_d.
// In random mixtures of 2 to 100 weights the excess was 0 after at most W / (2 min w_d) samples.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace octavo {

// Returns the weights as the smallest integers with the same ratio. They are exact for decimals of up to nine digits,
// and otherwise rounded to 2^-32 of the sum, but never to 0. A weight of 0 stays 0.
// Requires: no weight is negative, and one is above 0.
std::vector<int64_t> integer_weights(std::span<const double> weights);

class Mixture {
 public:
  explicit Mixture(std::vector<int64_t> weights);

  // Returns the dataset of sample next_sample() and advances to the next sample.
  int64_t next();
  // Has the effect of calling next() up to sample g, from any position. Walks about W / min w_d samples, at most W.
  void seek(int64_t g);

  int64_t next_sample() const { return next_sample_; }
  // Returns the number of samples taken from a dataset so far.
  int64_t taken(int64_t dataset) const;

 private:
  // Takes a sample from the first dataset whose behind_ is `behind`. Returns its index.
  size_t take_furthest(int64_t behind);
  // Adds one sample to g.
  void advance();
  // Moves to the beginning of the period of next_sample(), where the counts are exact.
  void rewind();
  // Walks from `begin`, in the period of next_sample(), with the bound, to the first sample up to `end` at which the
  // bound equals the counts. If there is none, goes to the beginning of the period and returns false.
  bool settle(int64_t begin, int64_t end);

  // One element per dataset with a weight above 0.
  std::vector<int64_t> datasets_;
  std::vector<int64_t> weights_;
  std::vector<int64_t> taken_;   // Number of samples of each dataset in this period (n).
  std::vector<int64_t> behind_;  // How far each dataset is behind its weight, w g - W n.
  int64_t total_ = 0;            // W.
  int64_t next_sample_ = 0;      // g.
  int64_t period_begin_ = 0;     // First sample of this period, a multiple of W.
};

}  // namespace octavo

// Which dataset each sample takes: the one that is furthest behind its weight.
//
// With integer weights w_d that sum to W, and n_d samples of dataset d among the first g, sample g takes the dataset of
// the largest w_d g - W n_d, the first one of equals. No dataset is ever a whole sample ahead: the largest of numbers
// that sum to 0 is not negative, so n_d - g w_d / W < 1 after the choice. Hence the counts are exact after every W
// samples, where the differences are whole, above -1 and sum to 0, and a sample is reached by walking one period at
// most. Nor is one of two datasets a sample behind; of more it may be, by the others' choices: 2 was about the most in
// draws of up to 12 weights.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace octavo {

// The weights as the smallest integers of the same ratio: exact where they are decimals of up to nine digits, else
// rounded to 2^-32 of their sum, but never to 0. A weight of 0 stays 0. All at least 0, one above.
std::vector<int64_t> integer_weights(std::span<const double> weights);

class Mixture {
 public:
  explicit Mixture(std::vector<int64_t> weights);

  // The dataset of sample next_sample(), and on to the one after it.
  int64_t next();
  // The same as calling next() up to sample g, from any place; takes time for up to W samples, at some 10^8 a second.
  void seek(int64_t g);

  int64_t next_sample() const { return next_sample_; }
  // Samples taken of a dataset so far.
  int64_t taken(int64_t dataset) const;

 private:
  // A dataset of weight above 0, since the counts were last exact.
  struct Share {
    int64_t dataset = 0;
    int64_t weight = 1;
    int64_t taken = 0;
    int64_t behind = 0;  // w g - W n
  };
  void rewind();

  std::vector<Share> shares_;
  int64_t total_ = 0;         // W
  int64_t next_sample_ = 0;   // g
  int64_t period_begin_ = 0;  // the last multiple of W
};

}  // namespace octavo

// Spikes of a number that each step has (the loss, the gradient norm, how long the step took): how far a step's lies
// above the mean of those before it, in their standard deviations (a z-score over a window, as PaLM's and OPT's authors
// watched their losses by eye: arXiv 2204.02311, 5.1).
//
// The limit of a step is made of the values up to two steps before it: as many as are known on every device when the
// step is queued, so that a run that was stopped in between decides as one that was not.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <utility>

namespace octavo {

class Spikes {
 public:
  // `window`: values that are looked at; none is a spike before there are as many. 0: none ever is. A deviation below
  // `least_spread` of the mean counts as that: a value that hardly moves is no measure of what is unusual.
  Spikes(int64_t window, double threshold, double least_spread)
      : window_(window), threshold_(threshold), least_spread_(least_spread) {}

  // Adds the value of a step that was not skipped.
  void add(int64_t step, double value);
  // Returns how many standard deviations `value` lies above the mean, or 0 if too few values are known.
  double z_score(int64_t step, double value) const;
  bool is_spike(int64_t step, double value) const { return z_score(step, value) > threshold_; }
  // Returns the value whose z-score is the threshold, or infinity if too few values are known.
  double limit(int64_t step) const;
  // Returns the mean of the window of steps before this one, or 0 if too few values are known.
  double mean(int64_t step) const { return spread_before(step).mean; }

  // The values, for checkpoints; from_json ignores what is no such state.
  nlohmann::json to_json() const;
  void from_json(const nlohmann::json& json);

 private:
  static constexpr int64_t kLag = 2;
  struct Spread {
    double mean = 0;
    double deviation = std::numeric_limits<double>::infinity();
  };
  Spread spread_before(int64_t step) const;

  int64_t window_;
  double threshold_;
  double least_spread_;
  std::deque<std::pair<int64_t, double>> values_;  // steps rising; kLag more than the window
};

}  // namespace octavo

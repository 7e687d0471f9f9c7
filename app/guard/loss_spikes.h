// Spikes of the training loss: how far a step's loss lies above the mean of those before it, in their standard
// deviations (a z-score over a window, as PaLM's and OPT's authors watched theirs by eye: arXiv 2204.02311, 5.1).
//
// The limit of a step is made of the losses up to two steps before it: as many as are known on every device when the
// step is queued, so that a run that was stopped in between decides as one that was not.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <utility>

namespace octavo {

class LossSpikes {
 public:
  // `window`: losses that are looked at; no loss is a spike before there are as many. 0: none ever is.
  LossSpikes(int64_t window, double threshold) : window_(window), threshold_(threshold) {}

  // Of a step that counted: neither skipped nor a spike that the run goes back for.
  void add(int64_t step, double loss);
  // How many standard deviations `loss` lies above the mean; 0 where too little is known. A deviation below
  // kLeastSpread of the mean counts as that: a loss that hardly moves is no measure of what is unusual.
  double z_score(int64_t step, double loss) const;
  bool is_spike(int64_t step, double loss) const { return z_score(step, loss) > threshold_; }
  // The loss of that z-score; infinity where too little is known.
  double limit(int64_t step) const;

  // The losses, for checkpoints; from_json ignores what is no such state.
  nlohmann::json to_json() const;
  void from_json(const nlohmann::json& json);

  static constexpr double kLeastSpread = 0.005;

 private:
  static constexpr int64_t kLag = 2;
  struct Spread {
    double mean = 0;
    double deviation = std::numeric_limits<double>::infinity();
  };
  Spread spread_before(int64_t step) const;

  int64_t window_;
  double threshold_;
  std::deque<std::pair<int64_t, double>> losses_;  // steps rising; kLag more than the window
};

}  // namespace octavo

// Judges the results of steps. A step went wrong if its loss or gradient norm is not finite, or if its loss is a spike
// (Spikes). If one of them is not finite, the device has already skipped the update by itself
// (kernels/optimizer/skip_update.h). Spikes of the gradient norm and unusually slow steps are only reported.
//
// A step is judged when its result reaches the host, one step late. All ranks see the same skipped steps. Spikes are
// detected from losses whose last bits may differ between ranks, so the run acts only on the judgement of rank 0.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "app/config/config.h"
#include "app/log/step.h"

namespace octavo {

// Detects spikes of a number that each step has: the loss, the gradient norm, or the duration of the step. A spike is a
// value whose z-score, its distance from the mean of the previous values in standard deviations, exceeds a threshold.
// The authors of PaLM and OPT looked for such spikes by eye (arXiv 2204.02311, section 5.1).
//
// The previous values of a step are a window that ends two steps before it. All of them are known when the step is
// queued, so a run that was stopped and resumed decides like a run that was not.
class Spikes {
 public:
  // `window` is the number of previous values that are used. No value is a spike until that many are known, and 0
  // disables the detection. A standard deviation below `least_spread` times the mean is replaced by that product,
  // because small changes of a nearly constant number are not spikes.
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

  // Convert the values to and from JSON for checkpoints. from_json ignores JSON that to_json did not write.
  nlohmann::json to_json() const { return values_; }
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
  // (step, value) pairs in ascending order of steps, at most kLag more than the window.
  std::deque<std::pair<int64_t, double>> values_;
};

class StepGuard {
 public:
  // `logging_every` is the number of steps in a logging interval.
  StepGuard(const TrainingConfig& config, int64_t logging_every);

  // Returns TrainingStep::loss_limit for a step that is about to be queued.
  float loss_limit(int64_t step) const;
  // Judges the result of a step. Called once per step, in order.
  Judgement judge(const Step& step);

  int64_t skipped() const { return skipped_; }  // Returns the number of skipped steps in the whole run.
  // Returns the number of skipped steps in a row, up to the last judged step.
  int64_t skipped_in_a_row() const { return in_a_row_; }
  bool has_given_up() const { return in_a_row_ > config_.max_skipped_steps; }

  // Convert the state to and from JSON for checkpoints. The durations of steps are omitted, because another machine may
  // resume the run.
  nlohmann::json to_json() const;
  void from_json(const nlohmann::json& json);

 private:
  TrainingConfig config_;
  int64_t logging_every_;
  int64_t last_warned_interval_ = -1;  // Last logging interval in which a slow step was warned about.
  Spikes losses_;
  Spikes grad_norms_;
  Spikes times_;
  int64_t skipped_ = 0;
  int64_t in_a_row_ = 0;
};

}  // namespace octavo

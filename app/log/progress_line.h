// The line that a terminal shows below the log while a run is under way, of a run's newest step:
//
//   42.1%  step 4,210/10,000  34.5M tokens  epoch 0.31  loss 2.8123  16,432 wps  mfu 46.2%  71.3 GiB 51%  eta 1h 12m
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace octavo {

// The mean of the last 20 or so of a run of numbers, the last ones counting most (an exponential mean, corrected for
// its beginning as Adam's moments are: Kingma and Ba, arXiv 1412.6980, section 3). What is not finite is left out.
class Smoothed {
 public:
  void add(double value);
  double value() const;  // NaN of none

 private:
  double sum_ = 0;
  double weight_ = 0;
};

struct ProgressNumbers {
  int64_t step = 0;  // done
  int64_t total_steps = 0;
  int64_t tokens = 0;  // seen by all ranks
  double epoch = 0;    // passes over the dataset that was passed over most
  double loss = 0;     // smoothed
  double wps = 0;      // tokens a second and GPU
  std::optional<double> mfu;
  double memory_gib = 0;
  std::optional<double> memory_share;  // of the GPU's
  double eta_s = 0;
};

// At most 100 characters, and fewer than `columns`; what matters least is left out where not all has room. `colors`:
// with a terminal's commands for them, which take no room.
std::string progress_line(const ProgressNumbers& numbers, int columns, bool colors);

}  // namespace octavo

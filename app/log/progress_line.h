// The line that a terminal shows below the log while a run is under way, of a run's newest step:
//
//   42.1%  step 4,210/10,000  34.5M tokens  epoch 0.31  loss 2.8123  16,432 wps  mfu 46.2%  71.3 GiB 51%  eta 1h 12m
#pragma once

#include <string>

#include "app/records/metric_row.h"

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

// At most 100 characters, and fewer than `columns`; what matters least is left out where not all has room. `colors`:
// with a terminal's commands for them, which take no room.
// `gpu_gib`: the memory of the GPU, 0 on a CPU.
std::string progress_line(const MetricRow& row, double eta_s, double gpu_gib, int columns, bool colors);

}  // namespace octavo

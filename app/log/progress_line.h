// The progress line that a terminal shows below the log while a run is in progress. It describes the run's newest step:
//
//   42.1%  step 4,210/10,000  34.5M tokens  epoch 0.31  loss 2.8123  16,432 wps  mfu 46.2%  71.3 GiB 51%  eta 1h 12m
#pragma once

#include <string>

#include "app/records/metric_row.h"

namespace octavo {

// Exponential moving average over about 20 values, corrected for its start as Adam's moments are (Kingma and Ba, arXiv
// 1412.6980, section 3). Values that are not finite are ignored.
class Smoothed {
 public:
  void add(double value);
  double value() const;  // Returns NaN if there are no values.

 private:
  double sum_ = 0;
  double weight_ = 0;
};

// Returns the progress line with at most 100 characters and fewer than `columns`. If the line is too long, the least
// important fields are omitted. `colors` adds color codes, which do not count as characters. `gpu_gib` is the total
// memory of the GPU, or 0 on the CPU.
std::string progress_line(const MetricRow& row, double eta_s, double gpu_gib, int columns, bool colors);

}  // namespace octavo

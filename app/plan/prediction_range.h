// Range of a prediction that follows from the errors of measured runs (MeasuredRuns).
//
// If a new run has an error e between the smallest and the largest error of n measured runs, its speed is
// predicted / (1 + e), so the range of a prediction p is
//
//   p / (1 + largest error)  to  p / (1 + smallest error)
//
// The range is not a confidence interval. If a new run resembles the n measured runs, its speed lies in the range with
// a probability of (n - 1) / (n + 1).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/plan/machine_rates.h"
#include "app/plan/network_model.h"
#include "app/plan/predictor.h"

namespace octavo {

struct PredictionRange {
  double low_wps = 0;
  double high_wps = 0;
  MeasuredRuns measured;  // Measured runs that the range follows from.
  // Properties of the predicted run that no measured run has, such as "more than 4 GPUs".
  std::vector<std::string> not_measured;
};

// Returns the range of a prediction of `wps` for a run on a mesh of GPUs of a machine. The range follows from the runs
// on the machine, or from those on all `known` machines if none was on this machine. It follows only from runs with
// pipeline stages if the mesh has stages, and otherwise only from runs without.
PredictionRange prediction_range(double wps, const MachineRates& machine, const MeshShape& mesh, int64_t gpus_per_node,
                                 std::span<const MachineRates> known);

// Returns the range of a prediction by the runs in the machine files, or nothing for a CPU, because no prediction for a
// CPU was compared.
std::optional<PredictionRange> prediction_range(double wps, const PredictedRun& run, const MachineRates& machine,
                                                const Cluster& cluster);

// Returns a text such as "15,900 to 17,300 wps, because 22 measured runs on up to 4 GPUs were predicted 3.2% too slow
// to 5.4% too fast". If something was not measured, the text begins with "unknown, not measured: several nodes; ".
std::string describe(const PredictionRange& range);

}  // namespace octavo

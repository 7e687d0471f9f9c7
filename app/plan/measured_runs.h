// Runs that were measured, and the range of a prediction that follows from their errors.
//
// The error of a run is predicted / measured - 1. If a new run has an error e between the smallest and the largest
// error of n measured runs, its speed is predicted / (1 + e), so the range of a prediction p is
//
//   p / (1 + largest error)  to  p / (1 + smallest error)
//
// The range is not a confidence interval. If a new run resembles the n measured runs, its speed lies in the range with
// a probability of (n - 1) / (n + 1).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "app/plan/machine_rates.h"
#include "app/plan/network_model.h"
#include "app/plan/predictor.h"
#include "parallel/config.h"

namespace octavo {

struct MeasuredRun {
  std::string_view machine;      // Name of the machine file.
  MeshShape mesh;                // Mesh of the run. All ranks were on one node.
  std::string_view config;       // File in configs/.
  std::string_view overrides;    // Overrides of the config, separated by spaces.
  double measured_wps = 0;       // Tokens per second per GPU.
  double predicted_wps = 0;      // Prediction of this version. A test computes it again.
  std::string_view source;       // Report in docs/benchmarks, without its extension.
  bool cudnn_attention = false;  // Whether attention was cuDNN's, which was slower than today's.
  int64_t document_length = 0;   // Mean number of tokens of a document. 0 without documents.
  double error() const { return predicted_wps / measured_wps - 1; }
};

std::span<const MeasuredRun> measured_runs();

// Range of a prediction by the errors of measured runs.
struct PredictionRange {
  double low_wps = 0;
  double high_wps = 0;
  double smallest_error = 0;
  double largest_error = 0;
  int64_t runs = 0;  // Number of measured runs that the range follows from. 0 if there are none.
  int64_t gpus = 0;  // Number of GPUs of the largest of these runs.
  // Properties of the predicted run that no measured run has, such as "more than 4 GPUs".
  std::vector<std::string> not_measured;
};

// Returns the range of a prediction of `wps` for a run on a mesh of GPUs of a machine. The range follows from the runs
// on the same machine, or from those on all machines if none was on this machine. It follows only from runs with
// pipeline stages if the mesh has stages, and otherwise only from runs without.
PredictionRange prediction_range(double wps, std::string_view machine, const MeshShape& mesh, int64_t gpus_per_node,
                                 std::span<const MeasuredRun> runs);

// Returns the range by measured_runs(), or nothing for a CPU, because no prediction for a CPU was compared.
std::optional<PredictionRange> prediction_range(double wps, const PredictedRun& run, const MachineRates& machine,
                                                const Cluster& cluster);

// Returns a text such as "15,900 to 17,300 wps, because 22 measured runs on up to 4 GPUs were predicted 3.2% too slow
// to 5.4% too fast". If something was not measured, the text begins with "unknown, not measured: several nodes; ".
std::string describe(const PredictionRange& range);

}  // namespace octavo

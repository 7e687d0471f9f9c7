#include "app/plan/prediction_range.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/format.h"

namespace octavo {

namespace {

// Returns the runs of all machines, with or without pipeline stages like `mesh`, together. Runs with pipeline stages
// are predicted by a simulation, whose errors say nothing about other runs.
MeasuredRuns runs_like(const MeshShape& mesh, std::span<const MachineRates> machines) {
  MeasuredRuns all;
  for (const MachineRates& machine : machines) {
    for (const MeasuredRuns& some : machine.measured_runs) {
      if ((some.largest_mesh.pipeline > 1) != (mesh.pipeline > 1)) continue;
      all.smallest_error = all.runs == 0 ? some.smallest_error : std::min(all.smallest_error, some.smallest_error);
      all.largest_error = all.runs == 0 ? some.largest_error : std::max(all.largest_error, some.largest_error);
      all.runs += some.runs;
      all.gpus = std::max(all.gpus, some.gpus);
      for (const MeshAxis& axis : kMeshAxes) {
        all.largest_mesh.*axis.size = std::max(all.largest_mesh.*axis.size, some.largest_mesh.*axis.size);
      }
    }
  }
  return all;
}

}  // namespace

PredictionRange prediction_range(double wps, const MachineRates& machine, const MeshShape& mesh, int64_t gpus_per_node,
                                 std::span<const MachineRates> known) {
  PredictionRange range{.measured = runs_like(mesh, {&machine, 1}), .not_measured = {}};
  if (range.measured.runs == 0) {
    range.measured = runs_like(mesh, known);
    range.not_measured.push_back(fmt::format("machine {}", machine.name));
  }
  const MeasuredRuns& measured = range.measured;
  range.low_wps = wps / (1 + measured.largest_error);
  range.high_wps = wps / (1 + measured.smallest_error);
  if (mesh.ranks() > measured.gpus) range.not_measured.push_back(fmt::format("more than {} GPUs", measured.gpus));
  if (mesh.ranks() > gpus_per_node) range.not_measured.emplace_back("several nodes");
  for (const MeshAxis& axis : kMeshAxes) {
    const int64_t size = mesh.*axis.size;
    if (axis.size != &MeshShape::shard && size > measured.largest_mesh.*axis.size) {
      range.not_measured.push_back(fmt::format("{} {}", axis.name, size));
    }
  }
  return range;
}

std::optional<PredictionRange> prediction_range(double wps, const PredictedRun& run, const MachineRates& machine,
                                                const Cluster& cluster) {
  if (machine.device == "cpu") return std::nullopt;
  PredictionRange range = prediction_range(wps, machine, run.mesh, cluster.gpus_per_node, known_machines());
  const bool has_documents = std::any_of(machine.measured_runs.begin(), machine.measured_runs.end(),
                                         [](const MeasuredRuns& measured) { return measured.documents; });
  if (run.document_length > 0 && !has_documents) range.not_measured.emplace_back("documents");
  if (run.config.optimizer.type == OptimizerType::kMuon) range.not_measured.emplace_back("Muon");
  return range;
}

std::string describe(const PredictionRange& range) {
  const auto percent = [](double error) {
    return fmt::format("{:.1f}% too {}", std::abs(100 * error), error < 0 ? "slow" : "fast");
  };
  const MeasuredRuns& measured = range.measured;
  const std::string wps = fmt::format("{} to {} wps", with_thousands_separators(std::llround(range.low_wps)),
                                      with_thousands_separators(std::llround(range.high_wps)));
  const std::string runs =
      fmt::format("{} measured runs on up to {} GPUs were predicted {} to {}", measured.runs, measured.gpus,
                  percent(measured.smallest_error), percent(measured.largest_error));
  if (range.not_measured.empty()) return fmt::format("{}, because {}", wps, runs);
  return fmt::format("unknown, not measured: {}; {}, which would give {}", fmt::join(range.not_measured, ", "), runs,
                     wps);
}

}  // namespace octavo

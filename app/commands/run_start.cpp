#include "app/commands/run_start.h"

#include <fmt/ranges.h>

#include <cmath>
#include <exception>
#include <vector>

#include "app/config/stages.h"
#include "app/inputs/same_files.h"
#include "app/plan/prediction_range.h"
#include "core/format.h"
#include "core/log.h"
#include "data/loader.h"
#include "data/overlap.h"

namespace octavo {

void check_data(const Config& config, ProcessGroup& group) {
  const std::vector<Config> stages = stage_configs(config);
  group.agree_on_files("looking for training data that is held out", [&] {
    if (!group.is_root() || config.data.allow_overlap) return;
    for (const Config& stage : stages) check_overlap(stage.data.train, config.data.validation);
  });
  group.agree_on_files("looking at the data of later stages", [&] {
    for (size_t i = 1; group.is_root() && i < stages.size(); ++i) {
      const DataConfig& data = stages[i].data;
      check_windows(SampleStream(data, data.train, /*vocab_size=*/0), data.train);
    }
  });
  for (const Config& stage : stages) check_same_data("data.train", stage.data.train, group);
  check_same_data("data.validation", config.data.validation, group);
}

std::string predicted_time(const PredictedRun& run, const MachineRates& machine, const Cluster& cluster,
                           int64_t samples) {
  try {
    const StepPrediction step = predict_step(run, machine, cluster);
    const double seconds =
        step.step_s * static_cast<double>(samples) / static_cast<double>(run.config.training.global_batch_size);
    std::string text = fmt::format("{} predicted for the steps, of {:.0f} ms each, by the rates of {}: {} wps",
                                   format_duration(seconds), step.step_s * 1e3, machine.name,
                                   with_thousands_separators(std::llround(step.wps)));
    if (const auto range = prediction_range(step.wps, run, machine, cluster)) {
      text += range->not_measured.empty()
                  ? fmt::format(" ({} to {})", with_thousands_separators(std::llround(range->low_wps)),
                                with_thousands_separators(std::llround(range->high_wps)))
                  : fmt::format(" (range unknown, not measured: {})", fmt::join(range->not_measured, ", "));
    }
    if (run.mesh.ranks() > cluster.gpus_per_node) {
      text += fmt::format(", and an assumed {:g} Gbit/s per GPU between machines", cluster.network_gbps);
    }
    return text;
  } catch (const std::exception& error) {  // Ignored, because a run does not need the prediction.
    return fmt::format("not predicted: {}", error.what());
  }
}

std::string time_on_cpu() { return "not predicted on a CPU; the eta of the steps is measured"; }

void log_start_screen(const StartFacts& facts) {
  for (const std::string& line : start_screen(facts)) log_info("{}", line);
  for (const std::string& warning : config_warnings(facts.config, facts.datasets)) log_warning("{}", warning);
}

}  // namespace octavo

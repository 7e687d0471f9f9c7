// RunRecords holds the contents of a run's folder (app/records/run_folder.h) for a report.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/process/events.h"
#include "app/report/series.h"

namespace octavo {

struct RunRecords {
  std::string dir;
  std::string name;  // Name of the folder.
  // Series by metric. The keys are those of metrics.jsonl, such as "loss" and "grad_norm". Metrics by dataset have the
  // keys "loss_by_dataset/NAME". FP8 statistics have the keys "fp8_saturated/TENSOR" and "fp8_flushed/TENSOR"; their
  // values are the largest share among all tensors of that kind.
  std::map<std::string, Series> metrics;
  std::vector<RunEvent> events;        // Events in the order of their times.
  std::vector<nlohmann::json> starts;  // {time, version, runs_on, hosts, command} of each start. All values are texts.
  std::map<std::string, std::string> config;  // Values as YAML or JSON by full key name. Empty without config.yaml.
  int64_t last_step = 0;
  std::string last_line = "{}";  // Newest line of metrics.jsonl for last_step.

  // Returns the series of a metric, which is empty if there is none.
  const Series& metric(const std::string& key) const;
  // Returns training.steps of the config. 0 without config.yaml.
  int64_t total_steps() const;
};

// Reads the folder of a run. If a restart repeats a step, the newest line of the step counts. If that line differs from
// the earlier line, the earlier lines of later steps do not count (MetricsHistory). Lines that are not JSON, such as
// one that a crash cut short, and values that are not finite are skipped. Throws an InputError if `dir` has no
// metrics.jsonl or a file cannot be read.
RunRecords read_run(const std::string& dir);

// Returns `dir` if it is the folder of a run, or else all folders of runs below it, sorted by path. Folders inside the
// folder of a run are ignored, and so are symbolic links that do not lead to the folder of a run. Throws an InputError
// if there are no runs.
std::vector<std::string> run_folders(const std::string& dir);

// Returns the JSON that `octavo inspect RUN` prints. run is the folder, and total_steps is training.steps, if known.
// step, loss, tokens and the other metrics of the last step come from its newest line. last_loss is the mean over the
// last logged steps that reports show too (tail_mean). warnings is the number of warnings, and last_warnings has the
// newest ones, at most five, if any. goodput is the content of goodput.json, if it is not
// null.
nlohmann::ordered_json describe_run(const RunRecords& run, const nlohmann::ordered_json& goodput);

// Returns the content of goodput.json in the folder of a run, or null if there is none.
nlohmann::ordered_json read_goodput(const std::string& dir);

// Returns the table that `octavo inspect RUN` prints on a terminal, with one line per fact about the run: steps,
// tokens, the last loss as in a report, the last validation loss with the smoothed loss at its step, goodput, and the
// number of warnings with the newest ones. `goodput` is the content of goodput.json, or null if there is no such file.
// Unknown values are shown as "-". Text from files is made printable.
std::string run_table(const RunRecords& run, const nlohmann::ordered_json& goodput);

}  // namespace octavo

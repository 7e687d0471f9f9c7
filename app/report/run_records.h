// RunRecords: the contents of a run's folder (app/records/run_folder.h), read for a report.
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
  // Series by metric: "loss", "grad_norm" and so on as in metrics.jsonl. Metrics by dataset are "loss_by_dataset/NAME",
  // and FP8 statistics "fp8_saturated/TENSOR" and "fp8_flushed/TENSOR", the largest share among all tensors of a kind.
  std::map<std::string, Series> metrics;
  std::vector<RunEvent> events;        // In the order of their times.
  bool has_events = false;             // Whether the run has an events.jsonl.
  std::vector<nlohmann::json> starts;  // {time, version, runs_on, hosts, command} of each start, all of them texts
  std::map<std::string, std::string> config;  // "section.key" to its value as YAML or JSON; empty without config.yaml
  int64_t last_step = 0;
  std::string last_line = "{}";  // The newest line of metrics.jsonl on that step.
  Series none;                   // of metrics that are not there

  const Series& metric(const std::string& key) const;  // Returns an empty series if there is none.
};

// Reads the folder of a run. If a restart repeats a step, the later line counts; if that line differs from the earlier
// one, no step after it counts that was written before (app/records/metrics_course.h). Lines that are no JSON, such as
// one that a crash cut short, and values that are not finite are skipped. InputError if `dir` has no metrics.jsonl, or
// a file cannot be read.
RunRecords read_run(const std::string& dir);

// Returns what `octavo inspect RUN` says of the folder `dir`. run: the folder; step, loss, tokens and the other numbers
// of its last step, as the newest line of it has them; goodput: the content of goodput.json, if it was written.
// InputError naming a file that cannot be read.
nlohmann::ordered_json describe_run(const std::string& dir);

}  // namespace octavo

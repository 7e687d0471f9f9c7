// Writes the metrics of a run to files: metrics.jsonl, TensorBoard events, and a file for Prometheus. Each file is a
// MetricSink. A new kind of file is a subclass and a line in open_metric_sinks(). MetricsHistory says which lines of
// metrics.jsonl count.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "app/config/config.h"
#include "app/records/metric_row.h"
#include "core/files/output_file.h"

namespace octavo {

inline constexpr OutputKind kPrometheusFile{"a file of logging.prometheus", "# TYPE octavo_"};

class MetricSink {
 public:
  virtual ~MetricSink() = default;

  // Writes a logged step. `repeated` says that metrics.jsonl already has the line of this step.
  virtual void write(const MetricRow& row, bool repeated) = 0;
  // Calls AppendFile::add_lost_lines() for the file of this sink, if it has lines.
  virtual void add_lost_lines(std::vector<std::string>& /*sentences*/) {}
  // Returns one sentence that says why the last write failed. Empty if it succeeded.
  virtual std::string failure() const = 0;
  // Returns the number of steps that are only in memory.
  virtual int64_t kept() const { return 0; }

  bool was_failing = false;  // Whether the last write failed. MetricsWriter warns when this changes.
};

// Opens the files that the config requests. Throws an InputError that names a file that cannot be opened.
std::vector<std::unique_ptr<MetricSink>> open_metric_sinks(const LoggingConfig& config);

// Writes to all sinks. Used by one thread of one rank. A file that cannot be written causes a warning and does not end
// the run.
class MetricsWriter {
 public:
  // `resumes_after` is the last step that is not repeated, or empty if the run starts from step 0. A resumed run
  // repeats steps, and a step is not written again if `dir`/metrics.jsonl has its line with equal losses and gradient
  // norm.
  MetricsWriter(const std::string& dir, std::vector<std::unique_ptr<MetricSink>> sinks,
                std::optional<int64_t> resumes_after = {});

  void write(const MetricRow& row);
  // Writes what could not be written before. Returns a sentence for each file whose lines are lost.
  std::vector<std::string> end();

 private:
  bool is_repeated(const MetricRow& row);

  std::vector<std::unique_ptr<MetricSink>> sinks_;
  std::map<int64_t, nlohmann::json> repeated_;  // Losses, norm and tokens of the lines after resumes_after, by step.
};

// A line of metrics.jsonl.
struct MetricsLine {
  int64_t step = 0;
  nlohmann::json values;  // All values of the line, including the step.
};
// Parses a line of metrics.jsonl. Returns nothing if it is not the line of a step, for example because a crash cut it
// short.
std::optional<MetricsLine> parse_metrics_line(std::string_view line);

// MetricsHistory decides which lines of a run's metrics.jsonl count. Lines are only ever appended. A run that resumes a
// checkpoint repeats steps and omits lines that the file already has, except that the first step after a start always
// has a line.
class MetricsHistory {
 public:
  // Adds a line, in the order of the file. Returns true if the line differs from the earlier line of the same step
  // (another loss, gradient norm or number of tokens). In that case the run has rolled back and computed something
  // else, so all earlier lines of this step and of later steps no longer count. Returns false if the line is new or
  // repeats the earlier one.
  bool diverges(const MetricsLine& line);

  // Returns the last step whose line counts, or 0 if there is none.
  int64_t last_step() const { return lines_.empty() ? 0 : lines_.rbegin()->first; }

 private:
  using Distinction = std::array<std::optional<double>, 3>;  // Values that distinguish two lines of a step.

  std::map<int64_t, Distinction> lines_;
};

}  // namespace octavo

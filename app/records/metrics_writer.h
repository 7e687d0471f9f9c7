// Writes the steps of a run to files: metrics.jsonl, TensorBoard events, and a file for Prometheus. A file is a
// MetricSink, so a new one is a class and a line in open_metric_sinks().
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/records/metric_row.h"
#include "core/files/output_file.h"

namespace octavo {

inline constexpr OutputKind kPrometheusFile{"a file of logging.prometheus", "# TYPE octavo_"};

class MetricSink {
 public:
  virtual ~MetricSink() = default;

  // Takes a logged step. `repeated`: metrics.jsonl already has its line.
  virtual void write(const MetricRow& row, bool repeated) = 0;
  // Takes a text in Markdown.
  virtual void write_text(const std::string& /*tag*/, int64_t /*step*/, const std::string& /*markdown*/) {}
  // Writes what could not be written before.
  virtual void write_kept() {}
  // Returns what hinders writing now, in one sentence. Empty if nothing does.
  virtual std::string failure() const = 0;
  // Returns the number of steps that are in memory alone.
  virtual int64_t kept() const { return 0; }
};

// Opens the files that the config asks for. InputError naming the file that cannot be opened.
std::vector<std::unique_ptr<MetricSink>> open_metric_sinks(const LoggingConfig& config);

// Used by one thread, on one rank. A run is worth more than its metrics: a file that cannot be written is a warning.
class MetricsWriter {
 public:
  // `resumes_after`: the last step that is not repeated. Empty if the run begins again. A run that resumes repeats
  // steps: one whose line is in `dir`/metrics.jsonl with the same losses and gradient norm is not written again.
  MetricsWriter(const std::string& dir, std::vector<std::unique_ptr<MetricSink>> sinks,
                std::optional<int64_t> resumes_after = {});

  void write(const MetricRow& row);
  void write_text(const std::string& tag, int64_t step, const std::string& markdown);
  // Writes what was kept, and warns of what remains in memory alone.
  void end();

 private:
  struct Sink {
    std::unique_ptr<MetricSink> sink;
    bool failing = false;
  };
  bool is_repeated(const MetricRow& row);

  std::vector<Sink> sinks_;
  std::map<int64_t, nlohmann::json> repeated_;  // Distinctions of the lines of steps after resumes_after.
};

}  // namespace octavo

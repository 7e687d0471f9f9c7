#include "app/records/metrics_writer.h"

#include <ctime>
#include <sstream>
#include <utility>

#include "app/records/append_file.h"
#include "app/records/tensorboard.h"
#include "core/files/json_input.h"
#include "core/log.h"

namespace octavo {

namespace {

constexpr int64_t kReadBytes = int64_t{1} << 20;

std::string metrics_path(const std::string& dir) { return dir + "/metrics.jsonl"; }

// Appends one line per logged step to metrics.jsonl. Existing lines are never changed. If a step has several lines, the
// last one counts (MetricsHistory).
class MetricsFile : public MetricSink {
 public:
  explicit MetricsFile(const std::string& dir) : file_(metrics_path(dir)) { file_.drop_torn_line(); }
  void write(const MetricRow& row, bool repeated) override {
    if (!repeated) file_.write(metrics_json(row) + "\n");
  }
  void add_lost_lines(std::vector<std::string>& sentences) override { file_.add_lost_lines(sentences); }
  std::string failure() const override { return file_.failure(); }
  int64_t kept() const override { return file_.kept() + file_.dropped(); }

 private:
  AppendFile file_;
};

class TensorBoardSink : public MetricSink {
 public:
  explicit TensorBoardSink(const std::string& dir) : writer_(dir) {}
  void write(const MetricRow& row, bool repeated) override {
    if (!repeated) writer_.write(row.step, tensorboard_scalars(row));
  }
  void add_lost_lines(std::vector<std::string>& sentences) override { writer_.file().add_lost_lines(sentences); }
  std::string failure() const override { return writer_.file().failure(); }
  int64_t kept() const override { return writer_.file().kept() + writer_.file().dropped(); }

 private:
  TensorBoardWriter writer_;
};

// Overwrites a file with the last logged step, for the textfile collector of Prometheus' node exporter.
class PrometheusSink : public MetricSink {
 public:
  PrometheusSink(std::string path, std::string run) : path_(std::move(path)), run_(std::move(run)) {
    check_output(path_, kPrometheusFile);
  }
  // Writes repeated steps too, because the time of the last step shows that the run is alive.
  void write(const MetricRow& row, bool /*repeated*/) override {
    failure_.clear();
    try {
      write_output_file(path_, kPrometheusFile, prometheus_text(row, run_, std::time(nullptr)));
    } catch (const std::exception& error) {
      failure_ = error.what();
    }
  }
  std::string failure() const override { return failure_; }

 private:
  std::string path_;
  std::string run_;
  std::string failure_;
};

// Returns the fields of a line that are equal when a restart repeats a step.
nlohmann::json distinction(const nlohmann::json& line) {
  nlohmann::json values;
  for (const char* key : {"loss", "grad_norm", "validation_loss", "tokens"}) {
    if (const auto found = line.find(key); found != line.end()) values[key] = *found;
  }
  return values;
}

// Reads metrics.jsonl from its end, only as far back as the last step that is not repeated.
std::map<int64_t, nlohmann::json> find_repeated(const std::string& dir, int64_t resumes_after) {
  const AppendFile file(metrics_path(dir));
  std::map<int64_t, nlohmann::json> repeated;
  const int64_t size = file.size_bytes();
  bool reached = false;
  for (int64_t bytes = kReadBytes; !reached; bytes *= 2) {
    std::istringstream text(file.read_before(size, bytes));
    reached = bytes >= size;
    for (std::string line; std::getline(text, line);) {
      const std::optional<MetricsLine> parsed = parse_metrics_line(line);
      if (!parsed) continue;
      if (parsed->step > resumes_after) {
        repeated.insert_or_assign(parsed->step, distinction(parsed->values));
      } else {
        reached = true;
      }
    }
  }
  return repeated;
}

}  // namespace

std::vector<std::unique_ptr<MetricSink>> open_metric_sinks(const LoggingConfig& config) {
  std::vector<std::unique_ptr<MetricSink>> sinks;
  sinks.push_back(std::make_unique<MetricsFile>(config.dir));
  if (config.tensorboard) sinks.push_back(std::make_unique<TensorBoardSink>(config.dir));
  if (!config.prometheus.empty()) sinks.push_back(std::make_unique<PrometheusSink>(config.prometheus, config.dir));
  return sinks;
}

MetricsWriter::MetricsWriter(const std::string& dir, std::vector<std::unique_ptr<MetricSink>> sinks,
                             std::optional<int64_t> resumes_after)
    : sinks_(std::move(sinks)) {
  if (resumes_after) repeated_ = find_repeated(dir, *resumes_after);
}

bool MetricsWriter::is_repeated(const MetricRow& row) {
  const auto found = repeated_.find(row.step);
  if (found == repeated_.end()) return false;
  const bool same = found->second == distinction(nlohmann::json::parse(metrics_json(row)));
  repeated_.erase(found);
  return same;
}

void MetricsWriter::write(const MetricRow& row) {
  const bool repeated = is_repeated(row);
  for (const std::unique_ptr<MetricSink>& sink : sinks_) {
    sink->write(row, repeated);
    const bool fails = !sink->failure().empty();
    if (fails && !sink->was_failing) {
      log_warning("{}; {}", sink->failure(),
                  sink->kept() > 0 ? "its lines are kept in memory until it can be written"
                                   : "the next logged step tries again");
    }
    if (!fails && sink->was_failing) log_info("the metrics are written again, with all lines since then");
    sink->was_failing = fails;
  }
}

std::vector<std::string> MetricsWriter::end() {
  std::vector<std::string> lost;
  for (const std::unique_ptr<MetricSink>& sink : sinks_) sink->add_lost_lines(lost);
  return lost;
}

std::optional<MetricsLine> parse_metrics_line(std::string_view line) {
  nlohmann::json values = nlohmann::json::parse(line, nullptr, false);  // Becomes discarded JSON if it is cut short.
  const std::optional<int64_t> step = find_value<int64_t>(values, "/step");
  return step ? std::optional(MetricsLine{*step, std::move(values)}) : std::nullopt;
}

bool MetricsHistory::diverges(const MetricsLine& line) {
  const auto number = [&](const char* place) { return find_value<double>(line.values, place); };
  const Distinction distinction = {number("/loss"), number("/grad_norm"), number("/tokens")};
  const auto before = lines_.find(line.step);
  const bool differs = before != lines_.end() && before->second != distinction;
  if (differs) lines_.erase(before, lines_.end());
  lines_.insert_or_assign(line.step, distinction);
  return differs;
}

}  // namespace octavo

// What a run reports: the console line, metrics.jsonl, and TensorBoard events.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/log/append_file.h"
#include "app/log/metric_row.h"
#include "app/log/tensorboard.h"
#include "core/files/output_file.h"

namespace octavo {

inline constexpr OutputKind kPrometheusFile{"a file of logging.prometheus", "# TYPE octavo_"};

// "step 100/2000  loss 3.2145  grad_norm 0.812  lr 3.00e-04  wps 16,432  mfu 96.2%  mem 71.3 GiB  step 997 ms  eta
// 31m", and "  validation_loss 3.1234" where there is one and "  [slow 3.1x]" of what stands out; without mfu where
// there is none.
std::string console_line(const MetricRow& row, double eta_seconds);

// The step as one line of JSON without the newline, with the keys of what there is. JSON has no NaN or infinity: such a
// value is written as null, and an object `nonfinite` beside it says what each of them was, as in
// {"step":7,"loss":null,...,"nonfinite":{"loss":"nan"}}. Numbers by dataset are objects with the datasets' names as
// keys.
std::string metrics_json(const MetricRow& row);

// The step in Prometheus' text format, for the textfile collector of its node exporter: octavo_loss{run="RUN"} and so
// on for each number; by dataset and FP8 tensor with a label of its name; octavo_time_seconds, when it was logged, by
// which a run that stands still is seen.
std::string prometheus_text(const MetricRow& row, const std::string& run, int64_t time_s);

// Appends to DIR/metrics.jsonl, one line a logged step, each flushed to the system; nothing is ever rewritten. A run
// that resumes repeats steps: one whose line is there already, with the same losses and gradient norm, is not written
// again; of several lines of a step the last one counts, and which behind it do says app/run/metrics_course.h. The
// first step after a start may so stand behind later ones. Used by one thread, on one rank.
class MetricsWriter {
 public:
  // Creates `dir` where needed. A partial last line, left by a crash, is ended, so that it spoils no other; readers
  // skip it. `resumes_after`: the last step that is not repeated; none where the run begins anew beside what is there.
  // With `tensorboard` an event file is written beside it, with all that is in metrics.jsonl: a value
  // under its tag (app/log/metric_table.h), a dataset's as in validation/NAME, a tensor's FP8 statistics under
  // fp8/LAYER/LINEAR/TENSOR/KEY.
  // Throws InputError naming the file that cannot be opened.
  MetricsWriter(const std::string& dir, bool tensorboard, std::optional<int64_t> resumes_after = {});

  // What cannot be written is kept, and written when it can be (AppendFile).
  void write(const MetricRow& row);
  // For the TensorBoard events alone, where there are any.
  void write_text(const std::string& tag, int64_t step, const std::string& markdown);
  // Writes what was kept, if anything.
  void write_kept();
  // What hinders writing now, in one sentence; empty where nothing does.
  std::string failure() const;
  // Steps that are in memory alone.
  int64_t kept() const { return file_.kept() + file_.dropped(); }

 private:
  void find_repeated(int64_t resumes_after);
  bool is_repeated(int64_t step, const std::string& line);

  AppendFile file_;
  std::optional<TensorBoardWriter> tensorboard_;
  std::map<int64_t, nlohmann::json> repeated_;  // steps after resumes_after that have a line: what tells it from others
};

}  // namespace octavo

// What a run says of its steps: the console line, or a terminal's progress, metrics.jsonl, TensorBoard events,
// warnings.
#pragma once

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/log/metrics.h"
#include "app/log/progress_line.h"
#include "app/log/step_results.h"
#include "app/process/console.h"
#include "app/process/runtime.h"
#include "app/run/fp8_report.h"
#include "core/work_queue.h"
#include "data/config.h"

namespace octavo {

// Returns "step 7" or "steps 7 to 9".
std::string describe_steps(int64_t first, int64_t last);

// What is known of a step when it is queued.
struct StepData {
  std::vector<int64_t> targets;  // by dataset, that its loss is the mean of
  NumbersByName epochs;
  SampleRange samples;          // that it takes, or passes over
  nlohmann::json loader_state;  // after it
  double data_ms = 0;           // that the host waited for its batch, and what of it was lost to the device
  double data_lost_ms = 0;
};

// And once its result is there.
struct FinishedStep {
  StepResult result;
  StepData data;

  int64_t step() const { return result.step; }
  double loss() const;                   // the mean over its targets
  std::optional<double> z_loss() const;  // the same
};

// What is reported of a step beside itself.
struct StepContext {
  int64_t tokens = 0;  // seen so far by all ranks
  int64_t skipped_steps = 0;
  StepMarks marks = {};  // but for slowdown, which is that of all steps since the last one reported
  double goodput = 0;
  std::optional<double> precision_gap = {};  // of FP8 from bfloat16, where the step was the last of a comparison
  NumbersByName loss_by_dataset = {};
  std::optional<double> validation_loss = {};
  NumbersByName validation_loss_by_dataset = {};
  std::vector<Fp8TensorReport> fp8 = {};
};

class StepLog {
 public:
  // `resumes_after`: see MetricsWriter, which only the rank that `writes` has. `console`: where that one shows the
  // progress, if it is a terminal; or null. InputError where a file cannot be opened.
  StepLog(const Config& config, const Runtime& runtime, bool writes, std::optional<int64_t> resumes_after,
          Console* console);
  ~StepLog();
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;

  // Each step, once it is judged, before it is reported. `tokens`: seen by then.
  void count(const FinishedStep& step, int64_t tokens, const StepMarks& marks);
  // Reports a step with the means since the last one reported. Not a collective; only the rank that writes says
  // anything.
  void report(const FinishedStep& step, StepContext context);
  // Files are written by a thread: beside a checkpoint that fills the disk a write can take seconds. Other such work of
  // the rank that writes; what it throws is a warning, once.
  void post(std::function<void()> work);
  // Waits until all lines are written: before a checkpoint, so that no line is missing of what a restart does not
  // repeat.
  void flush() { queue_.wait(); }
  // The same, and says what of it all is in memory alone, where there is anything.
  void end();

 private:
  struct Interval {
    int64_t steps = 0;
    int64_t samples = 0;
    double milliseconds = 0;
    double data_ms = 0;
    std::optional<double> slowdown = {};  // the largest
  };
  bool shows_progress() const { return console_ != nullptr && console_->columns() > 0; }
  void show_progress(const FinishedStep& step, int64_t tokens);
  double wps(double token_s) const;        // of all ranks' tokens, each of which takes so long
  double tokens_left(int64_t step) const;  // up to the end of the run
  double flops(double wps) const;          // a second, of a GPU
  std::optional<double> mfu(double wps) const;
  void write(const StepMetrics& metrics);

  const Config& config_;
  const BatchSchedule batches_;
  const Runtime& runtime_;
  Console* console_;
  int64_t gpu_bytes_ = 0;  // that there are; 0 on the CPU
  Interval interval_;
  Smoothed loss_;
  Smoothed token_s_;  // of all ranks
  ProgressNumbers progress_;
  std::optional<std::chrono::steady_clock::time_point> shown_;  // when it was, last
  // Of the thread.
  std::optional<MetricsWriter> metrics_;
  bool failing_ = false;
  bool warned_ = false;
  WorkQueue queue_;  // last, so that it ends first
};

}  // namespace octavo

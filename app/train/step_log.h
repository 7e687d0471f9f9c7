// What a run says of its steps: the console line, metrics.jsonl, TensorBoard events, warnings.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/run/fp8_report.h"
#include "app/run/runtime.h"
#include "app/train/metrics.h"
#include "app/train/step_results.h"
#include "core/work_queue.h"
#include "data/config.h"

namespace octavo {

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
  double loss() const;  // the mean over its targets
};

// What is reported of a step beside itself.
struct StepContext {
  int64_t tokens = 0;  // seen so far by all ranks
  int64_t skipped_steps = 0;
  double goodput = 0;
  std::optional<double> precision_gap = {};  // of FP8 from bfloat16, where the step was the last of a comparison
  NumbersByName loss_by_dataset = {};
  std::optional<double> validation_loss = {};
  NumbersByName validation_loss_by_dataset = {};
  std::vector<Fp8TensorReport> fp8 = {};
};

class StepLog {
 public:
  // `resumes_after`: see MetricsWriter, which only the rank that `writes` has. InputError where a file cannot be
  // opened.
  StepLog(const Config& config, const Runtime& runtime, bool writes, std::optional<int64_t> resumes_after);

  // Of each step: how long it took, and what of that the host waited for its batch.
  void count(double step_ms, double data_ms);
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
    double milliseconds = 0;
    double data_ms = 0;
  };
  void write(const StepMetrics& metrics);

  const Config& config_;
  const Runtime& runtime_;
  Interval interval_;
  // Of the thread.
  std::optional<MetricsWriter> metrics_;
  bool failing_ = false;
  bool warned_ = false;
  WorkQueue queue_;  // last, so that it ends first
};

}  // namespace octavo

// Reports the steps of a run: the console line, or a terminal's progress, metrics.jsonl, TensorBoard events, warnings.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "app/config/config.h"
#include "app/log/progress_line.h"
#include "app/process/console.h"
#include "app/process/gpu_energy.h"
#include "app/process/runtime.h"
#include "app/records/metric_row.h"
#include "app/records/metrics_writer.h"
#include "core/work_queue.h"

namespace octavo {

// Returns "step 7" or "steps 7 to 9".
std::string describe_steps(int64_t first, int64_t last);

class StepLog {
 public:
  // `resumes_after`: see MetricsWriter, which only the rank that `writes` has. `console`: where that one shows the
  // progress, if it is a terminal; or null. InputError where a file cannot be opened.
  StepLog(const Config& config, const Runtime& runtime, bool writes, std::optional<int64_t> resumes_after,
          Console* console);
  ~StepLog();
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;

  // Counts each step, once it is judged, before it is reported.
  void count(const MetricRow& row);
  // Reports a step with the means since the last one reported. Not a collective; only the rank that writes says
  // anything.
  void report(MetricRow row);
  // Files are written by a thread: beside a checkpoint that fills the disk a write can take seconds. Other such work of
  // the rank that writes; what it throws is a warning, once.
  void post(std::function<void()> work);
  // Waits until all lines are written: before a checkpoint, so that no line is missing of what a restart does not
  // repeat.
  void flush() { queue_.wait(); }
  // Waits until all lines are written, and warns of lines that are only in memory.
  void end();

 private:
  bool shows_progress() const { return console_ != nullptr && console_->columns() > 0; }
  void show_progress();
  std::string progress();
  double tokens_left(int64_t step) const;  // Up to the end of the run.
  // Sets the rates of a run whose tokens, of all ranks, take `token_s` seconds each.
  void set_rates(MetricRow& row, double token_s) const;
  void set_energy(MetricRow& row);

  const Config& config_;
  const BatchSchedule batches_;
  const Runtime& runtime_;
  Console* console_;
  int64_t gpu_bytes_ = 0;    // that there are; 0 on the CPU
  MetricInterval interval_;  // The steps since the last one reported,
  int64_t samples_ = 0;      // and their samples.
  Smoothed loss_;
  Smoothed token_s_;                                            // of all ranks
  MetricRow progress_;                                          // The last step, with smoothed loss and rates.
  std::optional<std::chrono::steady_clock::time_point> shown_;  // when it was, last
  // Used by the thread alone.
  std::optional<GpuEnergy> energy_;  // Empty where the driver has no counters.
  bool has_opened_energy_ = false;
  std::optional<MetricsWriter> metrics_;
  bool warned_ = false;
  WorkQueue queue_;  // last, so that it ends first
};

}  // namespace octavo

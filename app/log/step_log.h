// Reports the steps of a run: console lines, the progress line of a terminal, metrics.jsonl, TensorBoard events and
// warnings.
#pragma once

#include <chrono>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "app/config/stages.h"
#include "app/process/console.h"
#include "app/process/gpu_energy.h"
#include "app/process/runtime.h"
#include "app/records/metric_row.h"
#include "app/records/metrics_writer.h"
#include "app/run/utilization.h"
#include "core/thread.h"

namespace octavo {

// Exponential moving average over about 20 values, corrected for its start as Adam's moments are (Kingma and Ba, arXiv
// 1412.6980, section 3). Values that are not finite are ignored.
class Smoothed {
 public:
  void add(double value);
  // Returns NaN if there are no values.
  double value() const { return weight_ > 0 ? sum_ / weight_ : std::numeric_limits<double>::quiet_NaN(); }

 private:
  double sum_ = 0;
  double weight_ = 0;
};

// Returns "step 7" or "steps 7 to 9".
std::string describe_steps(int64_t first, int64_t last);

class StepLog {
 public:
  // Only the rank with `writes` set reports anything. `resumes_after` is the argument of MetricsWriter. `console` shows
  // the progress line if it is a terminal, and may be null. Throws an InputError if a file cannot be opened.
  StepLog(const StageConfig& config, const Runtime& runtime, bool writes, std::optional<int64_t> resumes_after,
          Console* console);
  ~StepLog();
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;

  // Adds a step to the current logging interval. Called for each step, after it was judged and before it is reported.
  void count(const MetricRow& row);
  // Reports a step, with means over the steps since the last reported one. Not a collective; does nothing on ranks that
  // do not write.
  void report(MetricRow row);
  // Calls `add` with the row of the last reported step until it returns false. Each time that `add` returns true,
  // writes the row to the files again.
  void report_again(const std::function<bool(MetricRow&)>& add);
  // Queues `work` for the thread that writes files. Files are written by a thread, because a write can take seconds
  // while a checkpoint fills the disk. If `work` throws, the first error is logged as a warning. Does nothing on ranks
  // that do not write.
  void post(std::function<void()> work);
  // Waits until all lines are written. Called before a checkpoint, because a restart from it does not repeat the
  // earlier steps.
  void flush() { queue_.wait(); }
  // Waits until all lines are written. Returns a sentence for each file whose lines are lost.
  std::vector<std::string> end();

 private:
  bool shows_progress() const { return console_ != nullptr && console_->columns() > 0; }
  std::string progress();
  double tokens_left(int64_t step) const;  // Returns the number of tokens from `step` to the end of the run.
  // Sets the rates in `row`. `token_s` is the time per token in seconds, over the tokens of all ranks.
  void set_rates(MetricRow& row, double token_s) const;
  void set_energy(MetricRow& row);

  const StageConfig& config_;
  const BatchSchedule batches_;
  const Runtime& runtime_;
  Console* console_;
  int64_t gpu_bytes_ = 0;              // Total memory of the GPU. 0 on the CPU.
  MetricInterval interval_;            // Steps since the last reported one.
  int64_t samples_ = 0;                // Number of samples in these steps.
  std::optional<MetricRow> reported_;  // Row of the last reported step.
  Smoothed loss_;
  Smoothed token_s_;                                            // Time per token, over the tokens of all ranks.
  MetricRow progress_;                                          // Row of the last step, with smoothed loss and rates.
  std::optional<std::chrono::steady_clock::time_point> shown_;  // Time at which the progress line was last shown.
  // The following members are used only by the thread that writes files.
  std::optional<GpuEnergy> energy_;  // Empty if the driver has no counters.
  bool has_opened_energy_ = false;
  std::optional<MetricsWriter> metrics_;
  bool warned_ = false;
  bool explained_mfu_ = false;
  bool has_ended_ = false;  // Used by the main thread.
  WorkQueue queue_;         // Last member, so that it is destroyed first.
};

}  // namespace octavo

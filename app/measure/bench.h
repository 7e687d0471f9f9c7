// Times training steps of a config on synthetic tokens, for `octavo bench`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/measure/bench_ops.h"
#include "app/memory/training_model.h"
#include "app/process/gpu_energy.h"
#include "app/process/runtime.h"
#include "core/table.h"

namespace octavo {

inline constexpr int64_t kBenchDocumentLength = 1024;

class Bench {
 public:
  // Allocates what training allocates, with weights from model.init_from or random ones. With a document mask, the
  // synthetic documents have `document_length` tokens on average. A collective. `config` and `runtime` must outlive the
  // object.
  Bench(const Config& config, Runtime& runtime, int64_t document_length = kBenchDocumentLength);

  // Returns the size of this rank's arena in bytes.
  int64_t allocated_bytes() { return model_.arena().used(); }
  // Runs `warmup` steps, then returns the time of each of `steps` further steps on the slowest rank, in milliseconds. A
  // collective.
  std::vector<double> time_steps(int64_t warmup, int64_t steps);
  // Returns the time of the forward and backward passes of each of `steps` steps, in milliseconds. A collective.
  std::vector<double> time_forward_backward(int64_t steps);
  // Returns the times of a step and of its ops, averaged over a few steps. A collective.
  ProfiledStep profile_step();
  // Runs steps of `step_ms` each for at least two seconds and returns the power and clock of the GPUs, averaged over
  // all ranks. A collective.
  GpuUse measure_use(GpuEnergy& energy, double step_ms);
  // Returns the mean number of tokens that a token of the synthetic batch attends to. A collective.
  double attended_tokens();
  // Writes a trace of one step to `path` (app/run/step_trace.h). A collective.
  void trace_step(const std::string& path);

 private:
  std::vector<double> time(int64_t repetitions, const std::function<void()>& work);
  void step();

  const Config& config_;
  Runtime& runtime_;
  TrainingModel model_;
  TrainingState& state_;  // State of model_.
  int64_t step_ = 0;
  int64_t targets_ = 0;  // Number of targets per step on all ranks.
};

// Adds a row with the throughput of steps of `config` that took `step_times` milliseconds each. Columns: parameters,
// compute (the dtype), seq_len, micro_batch_size, global_batch_size, step_ms (the median), step_ms_min, step_ms_max,
// wps, tflops, memory_gib; attended_tokens with a document mask; mfu, mfu_causal and utilization on GPUs; with `use`
// also sm_mhz, watts (per GPU) and joules_per_token. `batch` is the name of the row.
void add_throughput(Table& table, const char* batch, const Config& config, Runtime& runtime,
                    const std::vector<double>& step_times, double attended_tokens, const std::optional<GpuUse>& use);

}  // namespace octavo

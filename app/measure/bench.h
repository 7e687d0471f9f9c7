// Bench: training steps of a config on synthetic tokens, timed. `octavo bench` is made of it.
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

class Bench {
 public:
  // Allocates what training allocates, with weights from model.init_from, or random ones. A collective. `config` and
  // `runtime` must outlive the bench.
  Bench(const Config& config, Runtime& runtime);

  // Returns the bytes of the arena of this rank.
  int64_t allocated_bytes() { return model_.arena().used(); }
  // Returns the milliseconds of each of `steps` steps after `warmup` others, on the slowest rank. A collective.
  std::vector<double> time_steps(int64_t warmup, int64_t steps);
  // Returns the milliseconds of the forward and backward passes of each of `steps` steps. A collective.
  std::vector<double> time_forward_backward(int64_t steps);
  // Returns a step with its ops, the mean of a few. A collective.
  ProfiledStep profile_step();
  // Returns what the GPUs draw over at least two more seconds of steps, of `step_ms` each: the mean of all ranks. A
  // collective.
  GpuUse measure_use(GpuEnergy& energy, double step_ms);
  // A trace of one step (app/run/step_trace.h). A collective.
  void trace_step(const std::string& path);

 private:
  std::vector<double> time(int64_t repetitions, const std::function<void()>& work);
  void step();

  const Config& config_;
  Runtime& runtime_;
  TrainingModel model_;
  TrainingState& state_;  // of model_
  int64_t step_ = 0;
  int64_t targets_ = 0;  // of a step, all ranks'
};

// Adds a row with the throughput of steps of `config` that took `step_times`, in milliseconds: parameters, compute (the
// dtype), seq_len, micro_batch_size, global_batch_size, step_ms (the median), step_ms_min, step_ms_max, wps, tflops,
// memory_gib, on GPUs mfu, and with `use` sm_mhz, watts (per GPU) and joules_per_token. `batch` names the row.
void add_throughput(Table& table, const char* batch, const Config& config, Runtime& runtime,
                    const std::vector<double>& step_times, const std::optional<GpuUse>& use);

}  // namespace octavo

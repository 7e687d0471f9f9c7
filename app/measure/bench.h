// Times training steps of a config on synthetic tokens and the ops of a step, for `octavo bench`.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/job/job.h"
#include "app/measure/rates.h"
#include "app/process/gpu_energy.h"
#include "app/process/runtime.h"
#include "app/resolve/training_model.h"
#include "core/profiler.h"
#include "core/table.h"

namespace octavo {

// Time of a step with the profiler enabled, and of each op in it by name. If other processes use the machine, this step
// may take much longer than the timed steps, so shares of ops are relative to this step.
struct ProfiledStep {
  double step_ms = 0;
  std::map<std::string, Profiler::Total> ops;
};

// Rates from which lower bounds of op times are computed, and measured times that are compared with such bounds.
struct Floors {
  DeviceRates rates;
  std::vector<double> forward_backward_times;  // Time of the forward and backward passes of each step, in milliseconds.
};

inline constexpr int64_t kBenchDocumentLength = 1024;

class Bench {
 public:
  // Allocates what training allocates, with weights from model.init_from or random ones. With a document mask, the
  // synthetic documents have `document_length` tokens on average. A collective.
  // Requires: `job` and `runtime` outlive the object.
  Bench(const Job& job, Runtime& runtime, int64_t document_length = kBenchDocumentLength);

  // Returns the size of this rank's arena in bytes.
  int64_t allocated_bytes() { return model_.arena().used(); }
  // Runs `warmup` steps, then times each of `steps` further steps on the slowest rank, and adds a row with their
  // throughput. Columns: parameters, compute (the dtype), seq_len, micro_batch_size, global_batch_size, step_ms (the
  // median), step_ms_min, step_ms_max, wps, tflops, memory_gib; attended_tokens with a document mask; mfu, mfu_causal
  // and utilization on GPUs; with `energy`, which may be null, also sm_mhz, watts (per GPU) and joules_per_token.
  // `batch` is the name of the row. A collective.
  void add_throughput(Table& table, const char* batch, int64_t warmup, int64_t steps, GpuEnergy* energy);
  // Returns the time of the forward and backward passes of each of `steps` steps, in milliseconds. A collective.
  std::vector<double> time_forward_backward(int64_t steps);
  // Returns the times of a step and of its ops, averaged over a few steps. A collective.
  ProfiledStep profile_step();
  // Writes a trace of one step to `path` (app/run/step_trace.h). A collective.
  void trace_step(const std::string& path);

 private:
  std::vector<double> time(int64_t repetitions, const std::function<void()>& work);
  void step();
  // Runs steps of `step_ms` each for at least two seconds and returns the power and clock of the GPUs, averaged over
  // all ranks. A collective.
  GpuUse measure_use(GpuEnergy& energy, double step_ms);

  const Job& job_;
  Runtime& runtime_;
  TrainingModel model_;
  TrainingState& state_;  // State of model_.
  int64_t step_ = 0;
  int64_t targets_ = 0;  // Number of targets per step on all ranks.
};

// Adds profiled_step_ms and ops, a list of {op, calls, ms, share, tflops, gb_s} sorted by time, to the result of a
// bench. share is relative to profiled_step_ms. If `floors` is not null, also adds the results of --ops: fp8, floor_ms
// (a lower bound of ms, or null) and ratio (ms / floor_ms) of each op, the measured rates, the sums ops_ms and floor_ms
// over all ops, and unexplained_ms, the time of the profiled step outside of ops. products_and_attention_ms and
// products_and_attention_floor_ms are the sums over ops with FLOPs. forward_backward_ms is the median of
// floors->forward_backward_times, and forward_backward_ratio its ratio to products_and_attention_floor_ms.
void add_ops(nlohmann::ordered_json& result, const ProfiledStep& profiled, const Floors* floors);

// Adds exposed_communication_ms: the time of the profiled step minus its ops other than collectives, which includes
// gaps between ops.
void add_exposed_communication(nlohmann::ordered_json& result, const ProfiledStep& profiled);

// Prints to standard output what add_ops() and add_exposed_communication() added to `result`.
void print_ops(const nlohmann::ordered_json& result, const ProfiledStep& profiled, const Floors* floors);

}  // namespace octavo

// StepClock simulates how long a recorded step (app/predict/recorded_step.h) takes on a machine with known rates.
//
// Ops of the compute stream run one after the other. Work on another stream, such as the collectives of parallel/fsdp.h
// and parallel/tensor_group.h, begins when that stream and the events that it waits for permit it. It runs concurrently
// with the compute stream until the compute stream waits for it. The work adds only the time of this wait to the step.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "app/predict/machine_rates.h"
#include "app/predict/predictor.h"
#include "app/predict/recorded_step.h"
#include "model/pipeline_schedule.h"

namespace octavo {

// Time that a hidden collective adds to compute, relative to its own time, because both share multiprocessors and
// memory. Fitted to runs on 2 and 4 H200s (docs/internals/prediction.md). With reduce-scatters of every micro-batch the
// matmuls of backward took 6% to 11% longer in the runs of 2026-11-26. This slowdown is not added for collectives
// between matmuls of tensor or context parallelism, because the measured rates of these matmuls include it.
inline constexpr double kSlowdownOfCompute = 0.15;

class StepClock {
 public:
  // Throws an InputError if the machine has no rates of the step's matmuls.
  // Requires: `machine` outlives the object.
  StepClock(RecordedStep step, const MachineRates& machine, const NetworkRates& network);

  struct Times {
    std::vector<StepCost> costs;  // Costs, one per name.
    double communication_s = 0;   // Time of all collectives, exposed or not.
    // Times of the recorded entries (RecordedStep::begins), and of everything after the last of them.
    std::vector<double> entries_s = {};
    double end_s = 0;
  };
  // A range of the step (core/profiler.h) on the compute stream, including the time of waiting for transfers.
  struct TimedRange {
    std::string name;
    double begin_s = 0;
    double end_s = 0;
  };
  // Returns the ranges of each recorded micro-batch and of the end of the step, in the order in which they begin.
  std::vector<TimedRange> timeline(const MeshShape& mesh) const;
  // Returns the times of a step on `mesh`. Transfers between stages take no time. Throws an InputError if the machine
  // has no collectives.
  // Requires: `mesh` differs from the recorded mesh only in the number of shards and replicas.
  Times run(const MeshShape& mesh, int64_t micro_batches) const;
  // Returns the time of a transfer between neighbouring pipeline stages. 0 if the stage has no transfers.
  double stage_transfer_s(const MeshShape& mesh) const;

 private:
  class Walk;
  // Time of an op, alone and while the compute stream is busy.
  struct OpTime {
    double alone_s = 0;
    double overlapped_s = 0;
    double bytes = 0;
    double slowdown = 0;  // Time that a hidden second of a transfer adds to the compute stream, in seconds.
  };
  std::vector<OpTime> op_times(const MeshShape& mesh) const;
  OpTime transfer(const RecordedStep::StepOp& op, double bytes, const MeshShape& mesh) const;

  RecordedStep step_;
  const MachineRates& machine_;
  NetworkRates network_;
  std::vector<double> compute_s_;  // Time of each op of the step in seconds. 0 for ops whose time depends on the mesh.
};

// Predicted times of the ranges of a step.
struct StepTimeline {
  // Ranges named "micro-batch", and at the end "optimizer". Inside of a micro-batch are "forward" with "block 0" and so
  // on, "head", and "backward" with its blocks.
  std::vector<StepClock::TimedRange> ranges;
  // Number of micro-batches that are omitted. The ranges show the first micro-batch, one that stands for all in the
  // middle, and the last.
  int64_t left_out = 0;
};

// Predicts the timeline of a step. Throws an InputError if the machine has no rates of the step's matmuls.
StepTimeline step_timeline(const Job& job, const MachineRates& machine, const NetworkRates& network,
                           int64_t document_length);

// Simulates the pipeline stages of a step. All stages run their lists of entries (model/pipeline_schedule.h) at the
// same time, and exchange activations and gradients as parallel/pipeline_group.h does:
//
//   - An entry begins when the preceding entry has ended and the entry's input has arrived.
//   - The transfer of an entry's input begins when the preceding entry has begun, the sender has the data, and the
//     previous transfer on the same link has ended.
//   - A sender waits until its previous transfer on the same link has ended, because both transfers use one buffer.
//
// If all entries take equally long on p stages and transfers take no time, a stage waits for (p - 1) / (m + p - 1) of a
// 1f1b step with m micro-batches. With V chunks per stage it waits for (p - 1) / (V m + p - 1) of the step.
struct PipelineStep {
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  int64_t stages = 1;
  int64_t chunks = 1;  // Number of chunks of each stage.
  int64_t micro_batches = 1;
  // Returns the time of an entry on a stage in seconds, without waiting for other stages.
  std::function<double(int64_t stage, const StepEntry& entry)> seconds;
  double transfer_s = 0;  // Time of a transfer between neighbouring stages.
};

struct PipelineTimes {
  double end_s = 0;            // Time from the beginning of the step to the end of the last entry of any stage.
  std::vector<double> busy_s;  // Time that each stage spends in its entries.
};

// Returns the times of the entries of a step. Reductions and the optimizer, which follow the entries, are not included.
PipelineTimes pipeline_times(const PipelineStep& step);

}  // namespace octavo

// StepClock: how long a recorded step (app/plan/recorded_step.h) takes on a machine whose rates are known.
//
// Ops of the compute stream follow each other. What is queued on another stream, as the collectives of parallel/fsdp.h
// and parallel/tensor_group.h are, begins when that stream and the events that it waits for let it, and runs beside the
// compute stream until that one waits for it. The wait is what it adds to the step.
#pragma once

#include <string>
#include <vector>

#include "app/plan/machine_rates.h"
#include "app/plan/predictor.h"
#include "app/plan/predictor_rates.h"
#include "app/plan/recorded_step.h"

namespace octavo {

class StepClock {
 public:
  // The machine is borrowed. Throws InputError when its rates lack the step's products.
  StepClock(RecordedStep step, const MachineRates& machine, const Cluster& cluster);

  struct Times {
    std::vector<StepCost> costs;  // one a name
    double communication_s = 0;   // of all collectives, hidden or not
  };
  // A range of the step (core/profiler.h) on the compute stream, waiting for transfers included.
  struct TimedRange {
    std::string name;
    double begin_s = 0;
    double end_s = 0;
  };
  // Returns the ranges of the recorded micro-batches, each once, and of the end of the step, in the order in which they
  // begin.
  std::vector<TimedRange> timeline(const MeshShape& mesh) const;
  // On `mesh`, which differs from the one recorded in the number of its shards and copies alone. Throws InputError when
  // the machine has no collectives.
  Times run(const MeshShape& mesh, int64_t micro_batches) const;

 private:
  class Walk;
  // The time of an op, alone and alongside the compute stream.
  struct Price {
    double alone_s = 0;
    double beside_s = 0;
    double bytes = 0;
  };
  std::vector<Price> prices(const MeshShape& mesh) const;
  Price transfer(const RecordedStep::StepOp& op, double bytes, const MeshShape& mesh) const;

  RecordedStep step_;
  const MachineRates& machine_;
  Cluster cluster_;
  std::vector<double> compute_s_;  // by op; 0 of those that take what the mesh says
};

// When the parts of a step run, before it runs.
struct StepTimeline {
  // "micro-batch", in it "forward" with "block 0" and so on, "head" and "backward" with its blocks, at last
  // "optimizer".
  std::vector<StepClock::TimedRange> ranges;
  // Number of micro-batches that are left out: the ranges are those of the first, of one that stands for all in the
  // middle, and of the last.
  int64_t left_out = 0;
};

// Throws InputError when the machine's rates lack the step's products.
StepTimeline step_timeline(const PredictedRun& run, const MachineRates& machine, const Cluster& cluster);

}  // namespace octavo

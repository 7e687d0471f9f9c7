// Plans of one config: unchanged, and with other meshes, micro-batches and checkpointing modes.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/inputs/run_config.h"
#include "app/memory/plan_memory.h"
#include "app/plan/predictor.h"

namespace octavo {

// The target of a plan.
struct PlanTarget {
  int64_t gpus = 1;
  PlannedDevice device;
  std::optional<MachineRates> machine;  // Without a machine only the memory is planned.
  Cluster cluster;
};

struct Plan {
  Config config;  // The config with every default resolved.
  MeshShape mesh;
  MemoryPlan memory;
  std::optional<StepPrediction> prediction;
};

// Reads the config like a run on target.gpus ranks, without its datasets. Throws an InputError.
Config load_planned_config(const ConfigArguments& arguments, const PlanTarget& target);

Plan make_plan(const Config& config, const PlanTarget& target, ProcessGroup& group);

// The fastest plans that fit, at most `count`, over all meshes with 1, 2, 4 or 8 tensor-parallel ranks, micro-batches
// of powers of two, the checkpointing modes there are (of block mode, the fewest blocks that fit), full weights kept or
// gathered again, and gradients reduced with every micro-batch or, where that is faster, once a step; the batch and the
// rest stay as the config says. Memory is planned only for candidates fast enough to be among them. Those whose step
// takes `at_most_s` or longer are left out. Needs target.machine.
std::vector<Plan> search_plans(const Config& config, const PlanTarget& target, size_t count, ProcessGroup& group,
                               double at_most_s = std::numeric_limits<double>::infinity());

// Returns the keys in which a found plan differs from `plan`: "parallel.tensor_parallel=2 training.micro_batch_size=1".
std::string differences(const Plan& plan, const Plan& found);

}  // namespace octavo

// Makes the plan of a config: its job, with the memory, and the predicted time of a step. Searches for faster plans
// with other meshes, micro-batches and recomputation.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "app/inputs/run_config.h"
#include "app/job/job.h"
#include "app/predict/predictor.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

// Place, machine and network that a plan is made for.
struct PlanTarget {
  Place place;
  std::optional<MachineRates> machine;  // Rates of the machine. Without them only the memory is planned.
  NetworkRates network;
  int64_t document_length = 0;  // Mean length of documents for predictions. 0 means no document mask.
};

// Options and config of a plan or dry run.
struct TargetArguments {
  ConfigArguments config;
  int64_t gpus = 0;           // Number of GPUs. 0 means the config's plan.gpus.
  int64_t gpus_per_node = 8;  // Number of GPUs per node.
  std::string gpu_memory;     // Text such as "80GiB". Empty means the memory of the machine's GPU.
  std::string machine;        // Name in machines/, or path of a machine file. Empty means plan.machine.
  NetworkRates network;
  int64_t document_length = 0;  // Mean length of a document in tokens. 0 means no document mask.
};

// Returns the ranks, device and machine that the arguments and the config specify.
PlanTarget find_target(const TargetArguments& arguments, const Config& config, ProcessGroup& group);

struct Plan {
  Job job;
  std::optional<StepPrediction> prediction;
};

// Reads a config as a run on target.place.ranks ranks does, but opens no datasets. Throws an InputError.
Config load_planned_config(const ConfigArguments& arguments, const PlanTarget& target);

Plan make_plan(const StageConfig& stage, const MeshChoice& mesh, const PlanTarget& target);

// Returns the fastest plans that fit, at most `count`. The search covers all meshes with 1, 2, 4 or 8 tensor-parallel
// ranks, with 1 to max_context_parallel() ranks per sequence, and with numbers of pipeline stages and micro-batches
// that are powers of two. It covers all schedules of pipeline stages (interleaved with 2 or 4 chunks) and all modes of
// activation checkpointing (mode block with the smallest number of blocks that fits). It also covers keeping gathered
// weights or gathering them again, and reducing gradients per micro-batch or, if that is faster, once per step. The
// global batch and all other keys stay as configured. Memory is planned only for candidates that are fast enough to be
// among the results. Plans whose step takes `at_most_s` or longer are omitted.
// Requires: target.machine has a value.
std::vector<Plan> search_plans(const StageConfig& stage, const PlanTarget& target, size_t count,
                               double at_most_s = std::numeric_limits<double>::infinity());

// Returns the overrides that turn the config of `plan` into that of `found`, such as "parallel.tensor_parallel=2
// training.micro_batch_size=1".
std::string differences(const Plan& plan, const Plan& found);

}  // namespace octavo

// Finds the ranks, device and machine of a plan or dry run from options and config keys.
#pragma once

#include <cstdint>
#include <string>

#include "app/inputs/run_config.h"
#include "app/plan/plan_search.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

struct TargetArguments {
  ConfigArguments config;
  int64_t gpus = 0;        // Number of GPUs. 0 means plan.gpus.
  std::string gpu_memory;  // Text such as "80GiB". Empty means the memory of the machine's GPU.
  std::string machine;     // Name in machines/, or path of a machine file. Empty means plan.machine.
  int64_t gpus_per_node = 8;
  double network_gbps = 400;
  double network_latency_us = 14;
  int64_t document_length = 0;  // Mean length of a document in tokens. 0 means no document mask.
};

// Returns the ranks, device and machine that the arguments and the config specify.
PlanTarget find_target(const TargetArguments& arguments, const Config& config, ProcessGroup& group);

}  // namespace octavo

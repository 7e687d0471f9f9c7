#include "app/commands/plan_target.h"

#include <omp.h>

#include <algorithm>
#include <cstdlib>

#include "app/plan/machine_rates.h"
#include "app/process/runtime.h"
#include "core/error.h"
#include "core/format.h"

namespace octavo {

namespace {

// Returns the number of GPUs without --gpus: plan.gpus, or the size of the config's mesh.
int64_t stated_gpus(const Config& config) {
  if (config.plan.gpus > 0) return config.plan.gpus;
  int64_t gpus = 1;
  for (const MeshAxis& axis : kMeshAxes) gpus *= std::max<int64_t>(config.parallel.*axis.configured, 1);
  return gpus;
}

// Machine to plan for, and the option or key that names it in messages.
struct MachineChoice {
  std::string name;
  const char* option;
};

MachineChoice machine_of(const TargetArguments& arguments, const Config& config) {
  if (!arguments.machine.empty()) return {arguments.machine, "--machine"};
  return {config.plan.machine, "plan.machine"};
}

// Sets the number of CPU threads. Ranks on the CPU share its cores, as in a run, and the size of workspaces depends on
// the threads.
void set_threads(int64_t ranks, ProcessGroup& group) {
  const int cores = choose_threads(group);
  if (std::getenv("OMP_NUM_THREADS") == nullptr) omp_set_num_threads(std::max(1, cores / static_cast<int>(ranks)));
}

}  // namespace

PlanTarget find_target(const TargetArguments& arguments, const Config& config, ProcessGroup& group) {
  CHECK_INPUT(arguments.document_length == 0 || config.data.document_mask,
              "--document-length needs documents, and data.document_mask is false");
  PlanTarget target;
  target.document_length = arguments.document_length;
  target.gpus = arguments.gpus > 0 ? arguments.gpus : stated_gpus(config);
  target.device.gpus_per_node = arguments.gpus_per_node;
  const bool on_cpu = config.device == DeviceChoice::kCpu;
  const MachineChoice chosen = machine_of(arguments, config);
  const MachineRates machine = find_machine(chosen.name, chosen.option);
  target.cluster = {.gpus_per_node = arguments.gpus_per_node,
                    .network_gbps = arguments.network_gbps,
                    .network_latency_us = arguments.network_latency_us};
  if (!on_cpu || machine.device == "cpu") target.machine = machine;
  target.device.device = on_cpu ? Device::kCpu : Device::kCuda;
  CHECK_INPUT(
      on_cpu || machine.device != "cpu",
      "{} {} describes a CPU, but the plan is for GPUs, expected the file of a machine with GPUs, or device=cpu",
      chosen.option, chosen.name);
  if (on_cpu) {
    set_threads(target.gpus, group);
  } else {
    target.device.multiprocessors = static_cast<int>(machine.multiprocessors);
    target.device.memory_bytes = machine.gpu_memory_bytes;
  }
  if (!arguments.gpu_memory.empty()) target.device.memory_bytes = parse_bytes(arguments.gpu_memory, "--gpu-memory");
  return target;
}

}  // namespace octavo

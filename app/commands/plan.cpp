#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <utility>

#include "app/commands/commands.h"
#include "app/config/stages.h"
#include "app/memory/memory_advice.h"
#include "app/memory/mesh_choice.h"
#include "app/plan/machine_files.h"
#include "app/plan/plan_report.h"
#include "app/plan/plan_search.h"
#include "app/process/runtime.h"
#include "app/report/memory_page.h"
#include "core/error.h"
#include "core/files/json_input.h"
#include "core/files/output_file.h"
#include "core/format.h"

namespace octavo {

namespace {

// Number of GPUs to plan without --gpus: plan.gpus, or as many as the mesh of the config states.
int64_t stated_gpus(const Config& config) {
  if (config.plan.gpus > 0) return config.plan.gpus;
  int64_t gpus = 1;
  for (const MeshAxis& axis : kMeshAxes) gpus *= std::max<int64_t>(config.parallel.*axis.configured, 1);
  return gpus;
}

// The machine to plan for, and the option or key that names it, for messages.
struct MachineChoice {
  std::string name;
  const char* option;
};

MachineChoice machine_of(const PlanArguments& arguments, const Config& config) {
  if (!arguments.machine.empty()) return {arguments.machine, "--machine"};
  return {config.plan.machine, "plan.machine"};
}

// The CPU's ranks share its cores, as in a run, and workspaces are by thread.
void set_threads(int64_t ranks, ProcessGroup& group) {
  const int cores = choose_threads(group);
  if (std::getenv("OMP_NUM_THREADS") == nullptr) omp_set_num_threads(std::max(1, cores / static_cast<int>(ranks)));
}

}  // namespace

PlanTarget find_target(const PlanArguments& arguments, const Config& config, ProcessGroup& group) {
  PlanTarget target;
  target.gpus = arguments.gpus > 0 ? arguments.gpus : stated_gpus(config);
  target.device.gpus_per_node = arguments.gpus_per_node;
  const bool on_cpu = config.device == DeviceChoice::kCpu;
  const MachineChoice chosen = machine_of(arguments, config);
  const MachineRates machine = find_machine(chosen.name, chosen.option);
  target.cluster = {.gpus_per_node = arguments.gpus_per_node,
                    .network_gbps = arguments.network_gbps,
                    .network_latency_us = arguments.network_latency_us,
                    .network_oversubscription = arguments.network_oversubscription > 0
                                                    ? arguments.network_oversubscription
                                                    : machine.network_oversubscription};
  if (!on_cpu || machine.device == "cpu") target.machine = machine;
  target.device.device = on_cpu ? Device::kCpu : Device::kCuda;
  CHECK_INPUT(on_cpu || machine.device != "cpu",
              "{} {} is of a CPU, but the plan is for GPUs, expected a GPU's file, or device=cpu", chosen.option,
              chosen.name);
  if (on_cpu) {
    set_threads(target.gpus, group);
  } else {
    target.device.multiprocessors = static_cast<int>(machine.multiprocessors);
    target.device.memory_bytes = machine.gpu_memory_bytes;
  }
  if (!arguments.gpu_memory.empty()) target.device.memory_bytes = parse_bytes(arguments.gpu_memory, "--gpu-memory");
  return target;
}

namespace {

// A faster mesh or micro-batch, when there is one worth the change.
void add_faster(PlanReport& report, ProcessGroup& group) {
  constexpr double kWorthwhile = 1.08;  // beyond what predictions err by
  const double worthwhile_s = report.plan.prediction->step_s / kWorthwhile;
  const std::vector<Plan> best = search_plans(report.plan.config, report.target, 1, group, worthwhile_s);
  if (best.empty()) return;
  report.advice = differences(report.plan, best.front());
  report.advice_wps = best.front().prediction->wps;
}

void print(const PlanReport& report, const PlanArguments& arguments) {
  if (arguments.json) {
    std::cout << printable_json(plan_json(report), 2) << "\n";
  } else if (arguments.search) {
    print_search(report);
  } else {
    print_plan(report, arguments.all);
  }
}

// Words for the command line that make the plan fit; empty where none were found.
std::string fitting_advice(const Config& config, const PlanTarget& target, ProcessGroup& group) {
  const FittingChange change = find_fitting_change(config, target.gpus, target.device, group);
  return change.ranks > target.gpus ? fmt::format("--gpus {} {}", change.ranks, change.overrides) : change.overrides;
}

std::string unfitting(const PlanReport& report) {
  const Plan& plan = report.plan;
  return unfitting_message(plan.memory, plan.config.model.num_layers, report.advice);
}

// Of the stages of a run, that which takes the most memory.
Plan largest_plan(const Config& config, const PlanTarget& target, ProcessGroup& group) {
  std::optional<Plan> largest;
  for (const Config& stage : stage_configs(config)) {
    Plan plan = make_plan(stage, target, group);
    if (!largest || plan.memory.total_bytes() > largest->memory.total_bytes()) largest = std::move(plan);
  }
  return std::move(*largest);
}

// Whether it fits or not.
void write_memory_page(const std::string& path, const Plan& plan, const PlanTarget& target) {
  const PredictedRun run{.config = plan.config,
                         .mesh = plan.mesh,
                         .sharding = plan.memory.sharding,
                         .checkpointing = plan.memory.checkpointing};
  write_output_file(path, kMemoryPage, memory_page(plan, step_timeline(run, *target.machine, target.cluster)));
}

int plan(const PlanArguments& arguments, ProcessGroup& group) {
  const Config stated = load_config(arguments.config.path, arguments.config.overrides);
  const PlanTarget target = find_target(arguments, stated, group);
  CHECK_INPUT(
      target.machine || !(arguments.search || arguments.price_per_gpu_hour > 0 || !arguments.html.empty()),
      "--search, --price-per-gpu-hour and --html need rates, and device is cpu; expected --machine FILE of a CPU");
  if (!arguments.html.empty()) check_output(arguments.html, kMemoryPage);
  Config config = load_planned_config(arguments.config, target);
  const MeshChoice mesh = choose_mesh(config, target.gpus, target.device.gpus_per_node, target.device, group);
  if (config.parallel.leaves_copies()) config.parallel.data_parallel_replicate = mesh.mesh.replicate;
  PlanReport report{.target = target,
                    .plan = largest_plan(config, target, group),
                    .mesh_reason = mesh.reason,
                    .advice = {},
                    .advice_wps = 0,
                    .found = {},
                    .price_per_gpu_hour = arguments.price_per_gpu_hour,
                    .failures = arguments.failures};
  if (!arguments.html.empty()) write_memory_page(arguments.html, report.plan, target);
  const bool fits = report.plan.memory.fits();
  if (arguments.search) {
    constexpr size_t kShown = 10;
    report.found = search_plans(report.plan.config, target, kShown, group);
    if (report.found.empty()) report.advice = fitting_advice(report.plan.config, target, group);
    CHECK_INPUT(!report.found.empty(), "--search: nothing fits on {} GPUs; {}", target.gpus, unfitting(report));
  } else if (!fits) {
    report.advice = fitting_advice(report.plan.config, target, group);
  } else if (report.plan.prediction) {
    add_faster(report, group);
  }
  print(report, arguments);
  if (fits || arguments.search) return kExitDone;
  std::cout.flush();
  throw InputError(unfitting(report));
}

}  // namespace

int plan_command(const PlanArguments& arguments, ProcessGroup& group) {
  group.agree([&] {
    CHECK_INPUT(group.size() == 1,
                "octavo plan was started on {} ranks, expected one process; --gpus says how many ranks are planned",
                group.size());
  });
  return plan(arguments, group);
}

}  // namespace octavo

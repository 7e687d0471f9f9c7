#include <iostream>
#include <optional>
#include <utility>

#include "app/commands/commands.h"
#include "app/config/stages.h"
#include "app/plan/plan_report.h"
#include "app/plan/plan_search.h"
#include "app/report/pages.h"
#include "app/resolve/memory_advice.h"
#include "app/resolve/mesh_choice.h"
#include "core/error.h"
#include "core/files/json_input.h"
#include "core/files/output_file.h"

namespace octavo {

namespace {

struct PlanArguments {
  TargetArguments target;
  bool search = false;
  bool all = false;  // Print every item, not only the largest.
  std::string html;  // File for the page that shows the memory. Empty disables it.
  bool json = false;
};

// Adds a faster mesh or micro-batch to the report, if one is faster by more than kWorthwhile.
void add_faster(PlanReport& report) {
  constexpr double kWorthwhile = 1.08;  // Larger than the error of predictions.
  const double worthwhile_s = report.plan.prediction->step_s / kWorthwhile;
  const std::vector<Plan> best = search_plans(report.plan.job.stated, report.target, 1, worthwhile_s);
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

// Returns overrides for the command line that make the job fit. Empty if none were found.
std::string fitting_advice(const Job& job) {
  const FittingChange change = find_fitting_change(job);
  if (change.ranks <= job.place.ranks) return change.overrides;
  return fmt::format("--gpus {}{}{}", change.ranks, change.overrides.empty() ? "" : " ", change.overrides);
}

// Returns the plan of the stage that needs the most memory.
Plan largest_plan(const Config& config, const PlanTarget& target) {
  const MeshChoice mesh = choose_mesh(config, target.place);
  std::optional<Plan> largest;
  for (const StageConfig& stage : stage_configs(config)) {
    Plan plan = make_plan(stage, mesh, target);
    if (!largest || plan.job.memory.total_bytes() > largest->job.memory.total_bytes()) largest = std::move(plan);
  }
  return std::move(*largest);
}

// Writes the page that shows the memory of the plan, also if the plan does not fit.
void write_memory_page(const std::string& path, const Plan& plan, const PlanTarget& target) {
  const StepTimeline timeline = step_timeline(plan.job, *target.machine, target.network, target.document_length);
  write_output_file(path, kMemoryPage, memory_page(plan, timeline));
}

int run_plan(const PlanArguments& arguments, ProcessGroup& group) {
  check_one_process("octavo plan", group);
  const Config stated = load_config_or_shape(arguments.target.config);
  const PlanTarget target = find_target(arguments.target, stated, group);
  CHECK_INPUT(target.machine || !(arguments.search || !arguments.html.empty()),
              "--search and --html need the rates of a machine, but device is cpu; give --machine FILE of a CPU");
  CHECK_INPUT(arguments.html.empty() || stated.parallel.pipeline_parallel == 1,
              "--html draws the memory of a single pipeline stage, but parallel.pipeline_parallel is {}, expected 1",
              stated.parallel.pipeline_parallel);
  if (!arguments.html.empty()) check_output(arguments.html, kMemoryPage);
  const Config config = load_planned_config(arguments.target.config, target);
  PlanReport report{.target = target, .plan = largest_plan(config, target)};
  const Job& job = report.plan.job;
  if (!arguments.html.empty()) write_memory_page(arguments.html, report.plan, target);
  const bool fits = job.memory.fits();
  if (arguments.search) {
    constexpr size_t kShown = 10;
    report.found = search_plans(job.stated, target, kShown);
    if (report.found.empty()) report.advice = fitting_advice(job);
    CHECK_INPUT(!report.found.empty(), "--search: nothing fits on {} GPUs; {}", target.place.ranks,
                unfitting_message(job, report.advice));
  } else if (!fits) {
    report.advice = fitting_advice(job);
  } else if (report.plan.prediction) {
    add_faster(report);
  }
  print(report, arguments);
  if (fits || arguments.search) return kExitDone;
  std::cout.flush();
  throw InputError(unfitting_message(job, report.advice));
}

}  // namespace

void add_plan(CommandLine& line) {
  const auto [plan, arguments] =
      line.add<PlanArguments>("plan", "predict memory per GPU, throughput and GPU-hours without running", run_plan,
                              "octavo plan configs/llama3_8b_8gpu.yaml --search");
  TargetArguments& target = arguments.target;
  add_config_arguments(plan, target.config);
  plan->add_option("--gpus", target.gpus, "number of GPUs of the run")
      ->check(integer(1, 1 << 20))
      ->default_str("plan.gpus of the config");
  plan->add_option("--gpu-memory", target.gpu_memory, "memory of one GPU, such as 80GiB or 80GB")
      ->default_str("the memory of the machine's GPU");
  plan->add_option("--machine", target.machine, "rates: h200, h100 or a FILE that octavo doctor --save wrote")
      ->default_str("plan.machine of the config");
  plan->add_option("--gpus-per-node", target.gpus_per_node, "number of GPUs per node, which NVLink connects")
      ->check(integer(1, 1 << 20));
  plan->add_option("--network-gbps", target.network.gbps, "network bandwidth of each GPU in Gbit/s")
      ->check(number(1e-6, 1e9));
  plan->add_option("--network-latency-us", target.network.latency_us,
                   "latency of one hop between nodes in microseconds")
      ->check(number(0, 1e9));
  plan->add_option("--document-length", target.document_length,
                   "mean length of the documents with data.document_mask, in tokens")
      ->check(integer(1, kMaxDocumentLength))
      ->default_str("predicted without the mask");
  plan->add_flag("--search", arguments.search, "list the ten fastest meshes, micro-batches and modes that fit");
  plan->add_flag("--all", arguments.all, "list every item of the memory and of the step, not only the ten largest");
  plan->add_option("--html", arguments.html, "FILE.html for a picture of the memory over the time of a step");
  line.add_json(plan, arguments.json);
}

}  // namespace octavo

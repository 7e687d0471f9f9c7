// Compares the best plans with and without pipeline stages that `octavo plan --search` finds, for fast and slow
// networks, with the table of docs/plan.md.
#include <gtest/gtest.h>

#include "app/config/config_names.h"
#include "core/format.h"
#include "model/parameters/pipeline_stages.h"
#include "tests/app/plan/plan_fixture.h"

namespace octavo::pipeline_plans_test {
namespace {

// Returns the fastest plan that divides the model into a number of parts, which are pipeline stages or their chunks.
// parallel.pipeline_layers allows no other number.
std::optional<Plan> best_plan(const char* of_config, const PlanTarget& target, int64_t parts, double at_most_s) {
  Config config = load_planned_config(
      arguments_of(of_config, "parallel.data_parallel_replicate=1 training.micro_batch_size=1"), target);
  for (const StageLayers& stage : pipeline_stages(config.model, config.parallel, parts)) {
    config.parallel.pipeline_layers.push_back(stage[0].end - stage[0].begin);
  }
  std::vector<Plan> plans = search_plans(StageConfig(config), target, 1, at_most_s);
  return plans.empty() ? std::nullopt : std::optional(std::move(plans.front()));
}

// Tries large numbers of parts first, because the search omits plans that are slower than the best one so far.
Plan best_plan(const char* of_config, const PlanTarget& target, bool with_stages) {
  std::optional<Plan> best;
  for (const int64_t parts : with_stages ? std::vector<int64_t>{64, 32, 16, 8, 4, 2} : std::vector<int64_t>{1}) {
    const double at_most_s = best ? best->prediction->step_s : std::numeric_limits<double>::infinity();
    std::optional<Plan> plan = best_plan(of_config, target, parts, at_most_s);
    if (plan) best = std::move(plan);
  }
  return best.value();
}

std::string sizes_of(const MeshShape& mesh) {
  return fmt::format("{} x {} x {} x {}", mesh.pipeline, mesh.replicate, mesh.shard, mesh.tensor);
}

std::string chunks_of(const Config& config) {
  const ParallelConfig& parallel = config.parallel;
  const auto schedule = name_of(config_names::kPipelineSchedule, parallel.pipeline_schedule);
  return parallel.pipeline_chunks == 1 ? std::string(schedule) : fmt::format("{} chunks", parallel.pipeline_chunks);
}

TEST(PipelinePlans, BestMeshes) {
  // Cells: model and GPUs, Gbit/s per GPU, the best plans without and with stages, schedule, difference, bubble, and
  // NVIDIA's speed.
  for (const TableRow& row : documented_table("plan.md", "| model, GPUs |")) {
    const char* config = row[0].starts_with("405B") ? "llama3_405b_512gpu.yaml" : "llama3_70b_8gpu.yaml";
    const auto gpus = static_cast<int64_t>(number_in(row[0].substr(row[0].find(' '))));
    const PlanTarget target = gpus_of("h100", gpus, {.gbps = number_in(row[1])});
    const Plan without = best_plan(config, target, false);
    const Plan with = best_plan(config, target, true);
    const StepPrediction& p = with.prediction.value();
    const auto cell = [](const Plan& plan) {
      return fmt::format("{}, {}", with_thousands_separators(std::llround(plan.prediction->wps)),
                         sizes_of(plan.job.mesh.shape));
    };
    expect_cells(row, 2,
                 {cell(without), cell(with), chunks_of(with.job.config),
                  fmt::format("{:+.0f}%", 100 * (p.wps / without.prediction->wps - 1)),
                  fmt::format("{:.0f}%", 100 * p.bubble())});
  }
}

// Returns the time of the stage that is busy the longest if the last stage has `more` blocks more than by default, and
// the other stages have about equal numbers.
double slowest_s(const Config& config, const PlanTarget& target, int64_t stages, int64_t more) {
  Config changed = config;
  std::vector<int64_t>& layers = changed.parallel.pipeline_layers;
  const LayerRange last = pipeline_stages(config.model, config.parallel, stages).back().back();
  const int64_t others = last.begin - more;
  for (int64_t i = 1; i < stages; ++i) layers.push_back(others * i / (stages - 1) - others * (i - 1) / (stages - 1));
  layers.push_back(last.end - others);
  const StepPrediction p = plan_on(changed, target).prediction.value();
  return p.stages[static_cast<size_t>(p.slowest_stage())].busy_s;
}

TEST(PipelinePlans, TheDefaultStagesAreBalanced) {
  for (const char* name : {"llama3_8b_8gpu.yaml", "llama3_70b_8gpu.yaml", "llama3_405b_512gpu.yaml"}) {
    for (const int64_t stages : {2, 4, 8}) {
      const PlanTarget target = gpus_of("h100", 512);
      const Config config = load_planned_config(
          arguments_of(name, fmt::format("parallel.pipeline_parallel={} parallel.tensor_parallel=8 "
                                         "parallel.data_parallel_replicate=1 activation_checkpointing.mode=none "
                                         "parallel.reshard_after_forward=false training.micro_batch_size=1 "
                                         "training.global_batch_size=256",
                                         stages)),
          target);
      const double by_default = slowest_s(config, target, stages, 0);
      EXPECT_LE(by_default, 1.005 * slowest_s(config, target, stages, -1)) << name << ", " << stages;
      EXPECT_LE(by_default, 1.005 * slowest_s(config, target, stages, 1)) << name << ", " << stages;
    }
  }
}

}  // namespace
}  // namespace octavo::pipeline_plans_test

// Compares the best plans with and without pipeline stages that `octavo plan --search` finds, for fast and slow
// networks. Prints the table of docs/plan.md.
#include <gtest/gtest.h>

#include "app/config/config_names.h"
#include "core/format.h"
#include "model/parameters/pipeline_stages.h"
#include "tests/app/plan/plan_fixture.h"

namespace octavo::pipeline_plans_test {
namespace {

struct Case {
  const char* name;
  const char* config;
  int64_t gpus;
  const char* published;  // Tokens per second per GPU of NVIDIA's run at 400 Gbit/s.
};
constexpr Case kCases[] = {{"405B", "llama3_405b_512gpu.yaml", 512, "-"},
                           {"405B", "llama3_405b_512gpu.yaml", 1024, "315"},
                           {"70B", "llama3_70b_8gpu.yaml", 64, "1,621"}};

// Returns the fastest plan that divides the model into a number of parts, which are pipeline stages or their chunks.
// parallel.pipeline_layers allows no other number.
std::optional<Plan> best_plan(const Case& run, const PlanTarget& target, int64_t parts, double at_most_s,
                              ProcessGroup& group) {
  Config config = load_planned_config(
      arguments_of(run.config, "parallel.data_parallel_replicate=1 training.micro_batch_size=1"), target);
  for (const StageLayers& stage : pipeline_stages(config.model, config.parallel, parts)) {
    config.parallel.pipeline_layers.push_back(stage[0].end - stage[0].begin);
  }
  std::vector<Plan> plans = search_plans(config, target, 1, group, at_most_s);
  return plans.empty() ? std::nullopt : std::optional(std::move(plans.front()));
}

// Tries large numbers of parts first, because the search omits plans that are slower than the best one so far.
Plan best_plan(const Case& run, double network_gbps, bool with_stages, ProcessGroup& group) {
  const PlanTarget target = gpus_of("h100", run.gpus, {.network_gbps = network_gbps});
  std::optional<Plan> best;
  for (const int64_t parts : with_stages ? std::vector<int64_t>{64, 32, 16, 8, 4, 2} : std::vector<int64_t>{1}) {
    const double at_most_s = best ? best->prediction->step_s : std::numeric_limits<double>::infinity();
    std::optional<Plan> plan = best_plan(run, target, parts, at_most_s, group);
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
  ProcessGroup group;
  std::vector<std::string> rows;
  for (const Case& run : kCases) {
    for (const double gbps : {400.0, 200.0, 100.0}) {
      const Plan without = best_plan(run, gbps, false, group);
      const Plan with = best_plan(run, gbps, true, group);
      const StepPrediction& p = with.prediction.value();
      const auto wps = [](const StepPrediction& step) { return with_thousands_separators(std::llround(step.wps)); };
      rows.push_back(fmt::format("| {}, {} | {:.0f} | {}, {} | {}, {} | {} | {:+.0f}% | {:.0f}% | {} |", run.name,
                                 with_thousands_separators(run.gpus), gbps, wps(*without.prediction),
                                 sizes_of(without.mesh), wps(p), sizes_of(with.mesh), chunks_of(with.config),
                                 100 * (p.wps / without.prediction->wps - 1), 100 * p.bubble(),
                                 gbps == 400 ? run.published : "-"));
    }
  }
  expect_documented(rows, "plan.md");
}

// Returns the time of the stage that is busy the longest if the last stage has `more` blocks more than by default, and
// the other stages have about equal numbers.
double slowest_s(const Config& config, const PlanTarget& target, int64_t stages, int64_t more, ProcessGroup& group) {
  Config changed = config;
  std::vector<int64_t>& layers = changed.parallel.pipeline_layers;
  const LayerRange last = pipeline_stages(config.model, config.parallel, stages).back().back();
  const int64_t others = last.begin - more;
  for (int64_t i = 1; i < stages; ++i) layers.push_back(others * i / (stages - 1) - others * (i - 1) / (stages - 1));
  layers.push_back(last.end - others);
  const StepPrediction p = make_plan(changed, target, group).prediction.value();
  return p.stages[static_cast<size_t>(p.slowest_stage())].busy_s;
}

TEST(PipelinePlans, TheDefaultStagesAreBalanced) {
  ProcessGroup group;
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
      const double by_default = slowest_s(config, target, stages, 0, group);
      EXPECT_LE(by_default, 1.005 * slowest_s(config, target, stages, -1, group)) << name << ", " << stages;
      EXPECT_LE(by_default, 1.005 * slowest_s(config, target, stages, 1, group)) << name << ", " << stages;
    }
  }
}

}  // namespace
}  // namespace octavo::pipeline_plans_test

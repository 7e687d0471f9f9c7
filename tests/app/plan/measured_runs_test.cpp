// Compares predictions with measured runs, and tests the range of predictions. The test of the table prints it in the
// format of docs/internals/prediction.md.
#include "app/plan/measured_runs.h"

#include <cmath>

#include "core/format.h"
#include "tests/app/plan/plan_fixture.h"

namespace octavo::measured_runs_test {
namespace {

// Returns the target of a run. In a step, cuDNN's attention had 507 TFLOP/s forward and 407 backward on an H200, where
// attention has 627 and 495 now.
PlanTarget target_of(const MeasuredRun& run) {
  PlanTarget target = gpus_of(run.machine, run.mesh.ranks());
  target.document_length = run.document_length;
  if (run.cudnn_attention) {
    target.machine->attention.forward_flops *= 507.0 / 627;
    target.machine->attention.backward_flops *= 407.0 / 495;
  }
  return target;
}

std::string row_of(const MeasuredRun& run, double wps) {
  std::string gpus = run.machine == "h100" ? "H100" : "H200";
  if (run.mesh.ranks() > 1) gpus = fmt::format("{} {}s", run.mesh.ranks(), gpus);
  const std::string documents =
      run.document_length > 0 ? fmt::format(" --document-length {}", run.document_length) : "";
  return fmt::format("| {} | `{} {}{}` | {} | {} | {:+.1f}% | [{}](../benchmarks/{}.md) |", gpus,
                     run.config.substr(0, run.config.rfind('_')), run.overrides, documents,
                     with_thousands_separators(std::llround(wps)),
                     with_thousands_separators(std::llround(run.measured_wps)), 100 * (wps / run.measured_wps - 1),
                     run.source, run.source);
}

TEST(MeasuredRuns, AreStillPredictedAsTheTableSays) {
  // With fp8_tensorwise the program is 1% faster than the versions that most runs were measured with.
  constexpr double kLargestError = 0.08, kLargestErrorOfStages = 0.07;
  ProcessGroup group;
  std::vector<std::string> rows;
  for (const MeasuredRun& run : measured_runs()) {
    const PlanTarget target = target_of(run);
    const Plan plan = make_plan(load_planned_config(arguments_of(run.config, run.overrides), target), target, group);
    const double wps = plan.prediction.value().wps;
    rows.push_back(row_of(run, wps));
    EXPECT_EQ(plan.mesh, run.mesh) << rows.back();
    EXPECT_NEAR(run.predicted_wps, wps, 0.51) << "app/plan/measured_runs.cpp has another prediction: " << rows.back();
    EXPECT_NEAR(wps / run.measured_wps, 1, run.mesh.pipeline > 1 ? kLargestErrorOfStages : kLargestError)
        << rows.back();
    EXPECT_TRUE(plan.memory.fits()) << rows.back();
  }
  expect_documented(rows, "internals/prediction.md");
}

constexpr MeasuredRun kTwoRuns[] = {{"h200", {.shard = 2}, "", "", 100, 110, ""},
                                    {"h200", {.shard = 4}, "", "", 100, 95, ""},
                                    {"h100", {.tensor = 2}, "", "", 100, 100, ""}};

TEST(PredictionRange, FollowsFromTheErrorsOfTheMachine) {
  const PredictionRange range = prediction_range(1100, "h200", {.shard = 4}, 8, kTwoRuns);
  EXPECT_NEAR(range.smallest_error, -0.05, 1e-12);
  EXPECT_NEAR(range.largest_error, 0.1, 1e-12);
  EXPECT_NEAR(range.low_wps, 1000, 1e-9);
  EXPECT_NEAR(range.high_wps, 1100 / 0.95, 1e-9);
  EXPECT_EQ(range.runs, 2);
  EXPECT_EQ(range.gpus, 4);
  EXPECT_TRUE(range.not_measured.empty());
  EXPECT_EQ(
      describe(range),
      "1,000 to 1,158 wps, because 2 measured runs on up to 4 GPUs were predicted 5.0% too slow to 10.0% too fast");
}

TEST(PredictionRange, OfPipelineStagesFollowsFromRunsWithStages) {
  constexpr MeasuredRun kRuns[] = {{"h200", {.shard = 8}, "", "", 100, 110, ""},
                                   {"h200", {.pipeline = 4}, "", "", 100, 120, ""}};
  const PredictionRange of_stages = prediction_range(1, "h200", {.pipeline = 2}, 8, kRuns);
  EXPECT_EQ(of_stages.runs, 1);
  EXPECT_NEAR(of_stages.largest_error, 0.2, 1e-12);
  EXPECT_TRUE(of_stages.not_measured.empty());
  EXPECT_NEAR(prediction_range(1, "h200", {.shard = 8}, 8, kRuns).largest_error, 0.1, 1e-12);
  // No run with stages was on this machine, so the runs with stages on other machines count.
  EXPECT_EQ(prediction_range(1, "h100", {.pipeline = 8}, 8, kRuns).not_measured,
            (std::vector<std::string>{"machine h100", "more than 4 GPUs", "pipeline 8"}));
}

TEST(PredictionRange, NamesWhatWasNotMeasured) {
  using Texts = std::vector<std::string>;
  const auto beyond = [](const char* machine, const MeshShape& mesh) {
    return prediction_range(1, machine, mesh, 8, kTwoRuns).not_measured;
  };
  EXPECT_EQ(beyond("h200", {.shard = 8}), Texts{"more than 4 GPUs"});
  EXPECT_EQ(beyond("h200", {.shard = 4, .tensor = 4}), (Texts{"more than 4 GPUs", "several nodes", "tensor 4"}));
  EXPECT_EQ(beyond("h200", {.replicate = 2}), Texts{"replicate 2"});
  EXPECT_EQ(beyond("h100", {.tensor = 2}), Texts{});
  // A machine without runs gets the errors of all machines.
  EXPECT_EQ(beyond("node7", {.tensor = 2}), Texts{"machine node7"});
  EXPECT_EQ(prediction_range(1, "node7", {}, 8, kTwoRuns).runs, 3);
}

}  // namespace
}  // namespace octavo::measured_runs_test

// Compares predictions with the measured runs in docs/internals/prediction.md, and tests the range of predictions.
#include <filesystem>

#include "core/format.h"
#include "tests/app/plan/plan_fixture.h"

namespace octavo::measured_runs_test {
namespace {

// Returns the file in configs/ that a table calls "llama3_8b" without its number of GPUs.
std::string config_named(const std::string& name) {
  for (const auto& entry : std::filesystem::directory_iterator(std::string(OCTAVO_SOURCE_DIR) + "/configs")) {
    const std::string stem = entry.path().stem();
    if (stem.substr(0, stem.rfind('_')) == name) return entry.path().filename();
  }
  ADD_FAILURE() << "no config " << name;
  return "";
}

// Adds a run to those of its machine that have pipeline stages, or to those that have none.
void add(std::vector<MeasuredRuns>& all, const MeshShape& mesh, double error, bool documents) {
  const auto is_alike = [&](const MeasuredRuns& some) {
    return (some.largest_mesh.pipeline > 1) == (mesh.pipeline > 1);
  };
  auto runs = std::find_if(all.begin(), all.end(), is_alike);
  if (runs == all.end()) runs = all.insert(runs, {.smallest_error = error, .largest_error = error, .largest_mesh = {}});
  ++runs->runs;
  runs->gpus = std::max(runs->gpus, mesh.ranks());
  runs->smallest_error = std::min(runs->smallest_error, error);
  runs->largest_error = std::max(runs->largest_error, error);
  for (const MeshAxis& axis : kMeshAxes) {
    runs->largest_mesh.*axis.size = std::max(runs->largest_mesh.*axis.size, mesh.*axis.size);
  }
  runs->documents = runs->documents || documents;
}

TEST(MeasuredRuns, AreStillPredictedAsTheTableSays) {
  // With fp8_tensorwise the program is 1% faster than the versions that most runs were measured with.
  constexpr double kLargestError = 0.08, kLargestErrorOfStages = 0.07;
  std::map<std::string, std::vector<MeasuredRuns>> measured;
  // Cells: GPUs such as "2 H200s", config with overrides, predicted, measured, error, report.
  for (const TableRow& row : documented_table("internals/prediction.md", "| GPUs | config and overrides |")) {
    const std::string machine = row[0].find("H100") != std::string::npos ? "h100" : "h200";
    PlanTarget target = gpus_of(machine, row[0].starts_with("H") ? 1 : std::stoll(row[0]));
    std::string overrides = row[1].substr(1, row[1].size() - 2);
    if (const size_t option = overrides.find(" --document-length "); option != std::string::npos) {
      target.document_length = std::stoll(overrides.substr(overrides.rfind(' ')));
      overrides.resize(option);
    }
    if (row[5].substr(1) < "2026-11-23") use_cudnn_attention(*target.machine);
    const size_t space = overrides.find(' ');
    const ConfigArguments arguments = arguments_of(config_named(overrides.substr(0, space)), overrides.substr(space));
    const Plan plan = plan_on(load_planned_config(arguments, target), target);
    EXPECT_TRUE(plan.job.memory.fits()) << row[1];
    const double wps = plan.prediction.value().wps;
    const double error = std::round(wps) / number_in(row[3]) - 1;
    expect_cells(row, 2,
                 {with_thousands_separators(std::llround(wps)), row[3],
                  fmt::format("{:+.1f}%", 100 * (wps / number_in(row[3]) - 1))});
    EXPECT_NEAR(error, 0, plan.job.mesh.shape.pipeline > 1 ? kLargestErrorOfStages : kLargestError) << row[1];
    add(measured[machine], plan.job.mesh.shape, error, target.document_length > 0);
  }
  for (const auto& [machine, runs] : measured) {
    const std::vector<MeasuredRuns> stated = find_machine(machine).measured_runs;
    ASSERT_EQ(stated.size(), runs.size()) << machine;
    for (size_t i = 0; i < runs.size(); ++i) {
      const auto numbers = [](const MeasuredRuns& m) {
        return fmt::format("{} runs, {} GPUs, errors {} to {}, documents {}", m.runs, m.gpus, m.smallest_error,
                           m.largest_error, m.documents);
      };
      EXPECT_EQ(numbers(stated[i]), numbers(runs[i])) << "in machines/" << machine << ".json";
      EXPECT_EQ(stated[i].largest_mesh, runs[i].largest_mesh) << "in machines/" << machine << ".json";
    }
  }
}

MachineRates machine(const std::string& name, const std::vector<MeasuredRuns>& runs = {}) {
  MachineRates machine;
  machine.name = name;
  machine.measured_runs = runs;
  return machine;
}

const MachineRates kH200 = machine(
    "h200", {{.runs = 2, .gpus = 4, .smallest_error = -0.05, .largest_error = 0.1, .largest_mesh = {.shard = 4}}});
const MachineRates kH100 = machine(
    "h100", {{.runs = 1, .gpus = 2, .largest_mesh = {.tensor = 2}},
             {.runs = 1, .gpus = 4, .smallest_error = 0.2, .largest_error = 0.2, .largest_mesh = {.pipeline = 4}}});

PredictionRange range_on(const MachineRates& rates, const MeshShape& mesh) {
  return prediction_range(1100, rates, mesh, 8, std::vector{kH200, kH100});
}

TEST(PredictionRange, FollowsFromTheErrorsOfTheMachine) {
  const PredictionRange range = range_on(kH200, {.shard = 4});
  EXPECT_NEAR(range.low_wps, 1000, 1e-9);
  EXPECT_NEAR(range.high_wps, 1100 / 0.95, 1e-9);
  EXPECT_TRUE(range.not_measured.empty());
  for (const char* part : {"1,000 to 1,158 wps", "2 measured runs", "4 GPUs", "5.0% too slow to 10.0% too fast"}) {
    EXPECT_NE(describe(range).find(part), std::string::npos) << describe(range);
  }
}

TEST(PredictionRange, OfPipelineStagesFollowsFromRunsWithStages) {
  EXPECT_NEAR(range_on(kH100, {.pipeline = 2}).low_wps, 1100 / 1.2, 1e-9);
  EXPECT_TRUE(range_on(kH100, {.pipeline = 2}).not_measured.empty());
  EXPECT_NEAR(range_on(kH100, {.tensor = 2}).low_wps, 1100, 1e-9);
  // No run with stages was on this machine, so the runs with stages on other machines count.
  EXPECT_NEAR(range_on(kH200, {.pipeline = 8}).low_wps, 1100 / 1.2, 1e-9);
}

TEST(PredictionRange, NamesWhatWasNotMeasured) {
  using Texts = std::vector<std::string>;
  const auto beyond = [](const MachineRates& rates, const MeshShape& mesh) {
    return range_on(rates, mesh).not_measured;
  };
  EXPECT_EQ(beyond(kH200, {.shard = 8}), Texts{"more than 4 GPUs"});
  EXPECT_EQ(beyond(kH200, {.shard = 4, .tensor = 4}), (Texts{"more than 4 GPUs", "several nodes", "tensor 4"}));
  EXPECT_EQ(beyond(kH200, {.replicate = 2}), Texts{"replicate 2"});
  EXPECT_EQ(beyond(kH200, {.pipeline = 8}), (Texts{"machine h200", "more than 4 GPUs", "pipeline 8"}));
  EXPECT_EQ(beyond(kH100, {.tensor = 2}), Texts{});
  // A machine without runs gets the errors of all machines.
  EXPECT_EQ(beyond(machine("node7"), {.tensor = 2}), Texts{"machine node7"});
  EXPECT_EQ(range_on(machine("node7"), {}).measured.runs, 3);
}

}  // namespace
}  // namespace octavo::measured_runs_test

// Tests that a plan and a run decide the same job, for the presets and for random configs.
#include "app/resolve/resolve.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "app/config/config_check.h"
#include "app/config/stages.h"
#include "app/resolve/memory_budget.h"
#include "app/resolve/mesh_choice.h"
#include "app/resolve/training_model.h"
#include "tests/app/run/mesh_draw.h"

namespace octavo {
namespace {

void expect_equal(const MemoryPlan& plan, const MemoryPlan& run) {
  ASSERT_EQ(plan.items.size(), run.items.size());
  for (size_t i = 0; i < plan.items.size(); ++i) {
    EXPECT_EQ(plan.items[i].name, run.items[i].name);
    EXPECT_EQ(plan.items[i].count, run.items[i].count) << plan.items[i].name;
    EXPECT_EQ(plan.items[i].bytes, run.items[i].bytes) << plan.items[i].name;
  }
  EXPECT_EQ(plan.overlaid.size(), run.overlaid.size());
  EXPECT_EQ(plan.arena_bytes, run.arena_bytes);
  EXPECT_EQ(plan.state_bytes, run.state_bytes);
  EXPECT_EQ(plan.budget.available, run.budget.available);
  EXPECT_EQ(plan.budget.outside, run.budget.outside);
  EXPECT_EQ(plan.budget.margin, run.budget.margin);
  EXPECT_EQ(plan.fits(), run.fits());
}

// Compares the jobs that a plan and a run on one CPU rank decide. The plan is told the place of the run. Returns the
// job of the run's first stage.
Job expect_plan_is_the_run(Config stated) {
  stated.device = DeviceChoice::kCpu;
  stated.precision.compute = DType::kFloat32;
  ProcessGroup group;
  Setting setting = observe_setting(std::move(stated), group);
  setting = with_chosen_mesh(std::move(setting), group);
  Runtime runtime(setting, group);
  Job first;
  for (const StageConfig& stage : stage_configs(setting.run)) {
    const LiveSite live(runtime);
    const Job run = resolve(stage, live);
    const Place told = as_planned(live.place());
    const Job plan = resolve(stage, told, choose_mesh(setting.run, told));
    EXPECT_TRUE(is_decided(run.config));
    EXPECT_EQ(to_json(plan.stated), to_json(run.stated));
    EXPECT_EQ(to_json(plan.config), to_json(run.config));
    EXPECT_EQ(plan.config.stage.number, run.config.stage.number);
    EXPECT_EQ(plan.mesh.shape, run.mesh.shape);
    EXPECT_EQ(plan.mesh.reason, run.mesh.reason);
    EXPECT_EQ(plan.place.ranks, run.place.ranks);
    EXPECT_EQ(plan.local_batch(), run.local_batch());
    EXPECT_EQ(plan.micro_batches(), run.micro_batches());
    expect_equal(plan.memory, run.memory);
    if (stage.stage.number <= 1) first = run;
  }
  return first;
}

TEST(Resolve, APlanIsTheRunForEveryPreset) {
  int64_t compared = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(OCTAVO_SOURCE_DIR) + "/configs")) {
    SCOPED_TRACE(entry.path().filename().string());
    Config config = load_config(entry.path());
    config.parallel = {};  // One rank.
    if (config.model.num_layers == 0) continue;
    validate(config, 1, Purpose::kSynthetic);
    expect_plan_is_the_run(config);
    ++compared;
  }
  EXPECT_GE(compared, 9);
}

// The run also allocates what was planned.
TEST(Resolve, APlanIsTheRunForRandomConfigs) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    Config config = MeshDraw::of(seed, 1, Device::kCpu).config;
    config.parallel.reshard_after_forward = config.parallel.accumulate_unsharded = AutoBool::kAuto;
    if (seed % 2 == 0) config.activation_checkpointing = {};
    if (seed % 4 == 0 && uses_fp8(config.precision)) config.precision_guard.every = 10;
    const Job job = expect_plan_is_the_run(config);
    ProcessGroup group;
    const Setting setting = observe_setting(job.stated, group);
    Runtime runtime(setting, group);
    EXPECT_EQ(TrainingModel(job, true, runtime).arena().buffer().bytes(), job.memory.arena_bytes);
    EXPECT_EQ(TrainingModel(job, false, runtime).arena().buffer().bytes(), job.memory.state_bytes);
  }
}

// Available memory decides, and what does not fit with any choice is the last one.
TEST(Resolve, TakesTheFirstChoiceThatFits) {
  const StageConfig config = [] {
    Config preset = load_config(std::string(OCTAVO_SOURCE_DIR) + "/configs/llama3_8b_8gpu.yaml");
    resolve_device(preset, Device::kCuda);
    return StageConfig(preset);
  }();
  const MeshChoice mesh{config.parallel.mesh_shape(8), ""};
  int64_t before = std::numeric_limits<int64_t>::max();
  for (const int64_t gib : {140, 80, 60, 40, 20}) {
    const Place place{.ranks = 8, .memory_bytes = gib << 30};
    const Job job = resolve(config, place, mesh);
    EXPECT_TRUE(is_decided(job.config));
    EXPECT_FALSE(is_decided(job.stated));
    EXPECT_LE(job.memory.arena_bytes, before) << gib;
    before = job.memory.arena_bytes;
    EXPECT_EQ(job.memory.fits(), can_fit(config, place, mesh.shape)) << gib;
  }
}

}  // namespace
}  // namespace octavo

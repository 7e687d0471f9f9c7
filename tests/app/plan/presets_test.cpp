// Tests that the configs in configs/ are nearly as fast as the best plan that `octavo plan --search` finds for them.
#include <filesystem>

#include "app/resolve/mesh_choice.h"
#include "tests/app/plan/plan_fixture.h"

namespace octavo::presets_test {
namespace {

TEST(Presets, AreNearlyTheBestThatASearchFinds) {
  constexpr double kLargestLoss = 0.03;
  int64_t compared = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(OCTAVO_SOURCE_DIR) + "/configs")) {
    const std::string name = entry.path().filename();
    const PlanConfig named = load_config(entry.path(), {}).plan;
    if (named.gpus == 0) continue;  // The config is for a CPU.
    const PlanTarget target = gpus_of(named.machine, named.gpus);
    const Config config = load_planned_config(arguments_of(name, ""), target);
    const Plan plan = make_plan(StageConfig(config), choose_mesh(config, target.place), target);
    EXPECT_TRUE(plan.job.memory.fits()) << name;
    const Plan best = search_plans(plan.job.stated, target, 1).at(0);
    EXPECT_GT(plan.prediction->wps, (1 - kLargestLoss) * best.prediction->wps)
        << name << " would be faster with " << differences(plan, best);
    ++compared;
  }
  EXPECT_GE(compared, 7);
}

}  // namespace
}  // namespace octavo::presets_test

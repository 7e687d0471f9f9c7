// Tests that a run rolls back to its last checkpoint within a stage, and never to an earlier stage.
#include "app/train/training_run.h"

#include <limits>

#include "app/config/stages.h"
#include "tests/app/train/run_fixture.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

class TrainingRunTest : public RunTest {
 protected:
  // Takes steps up to `last` and returns the state of the loader after it.
  static nlohmann::json take_steps(TrainingRun& run, int64_t& step, int64_t last) {
    nlohmann::json loader_state;
    while (step < last) {
      const Step next = run.next_batch(++step);
      loader_state = next.loader_state;
      run.queue_step(next, std::numeric_limits<float>::infinity());
      run.pop_step();
    }
    return loader_state;
  }
  static void take_steps_and_save(TrainingRun& run, int64_t& step, int64_t last) {
    const nlohmann::json loader_state = take_steps(run, step, last);
    run.save({.step = step,
              .tokens = run.tokens_seen(step),
              .loader_state = loader_state,
              .rolled_back = run.start().rolled_back},
             Save::kOnDisk);
    run.checkpoints().finish();
  }
  void damage(int64_t step) const {
    std::filesystem::remove(dir_ / fmt::format("checkpoints/step_{:08}/rank_00000.safetensors", step));
  }
};

// The stages end with steps 4 and 10. The checkpoint of step 3 belongs to the first stage, and that of step 4 starts
// the second stage.
TEST_F(TrainingRunTest, DoesNotRollBackToAnEarlierStage) {
  RunProcess process(run_config({"training.steps=10", "stages=[{steps: 4}, {steps: 6}]", "checkpoint.keep=0"}));
  int64_t step = 0;
  const auto run_stage = [&](size_t stage, std::optional<Checkpoint> resumed) {
    return TrainingRun(process.job(stage_config(process.config, stage)), process.runtime, process.timer,
                       process.checkpoints, process.memory_checkpoints, std::move(resumed), [](Arena&) {});
  };
  {
    TrainingRun first = run_stage(0, {});
    take_steps_and_save(first, step, 3);
    take_steps_and_save(first, step, 4);
  }
  const auto spike_of_step_6 = [&](const std::vector<int64_t>& damaged) {
    step = 4;
    TrainingRun second = run_stage(1, process.checkpoints.open_last({}));
    EXPECT_EQ(second.start().step, 4);
    take_steps_and_save(second, step, 5);
    take_steps(second, step, 6);
    for (const int64_t number : damaged) damage(number);
    second.roll_back(6);
    EXPECT_EQ(second.start().step, 5);
  };
  spike_of_step_6({});
  std::filesystem::remove_all(dir_ / "checkpoints/step_00000005");
  expect_mentions(message_of<Error>([&] {
                    spike_of_step_6({4, 5});
                  }),
                  {"step_00000003, belongs to an earlier stage", "step 6 cannot be rolled back to it"});
}

// Steps 1 to 5 use samples 0 to 19, so step 6 begins with sample 20.
TEST_F(TrainingRunTest, SkipsTheSamplesOfASpikeAlsoAfterItIsResumed) {
  RunProcess process(run_config({"training.steps=20", "checkpoint.keep=0"}));
  const auto start = [&](std::optional<Checkpoint> resumed) {
    return TrainingRun(process.job(), process.runtime, process.timer, process.checkpoints, process.memory_checkpoints,
                       std::move(resumed), [](Arena&) {});
  };
  int64_t step = 0;
  {
    TrainingRun first = start({});
    take_steps_and_save(first, step, 5);
    take_steps(first, step, 6);
    first.roll_back(6);
    step = 5;
    EXPECT_EQ(first.next_batch(6).samples, (SampleRange{20, 28}));
  }
  {
    TrainingRun second = start(process.checkpoints.open_last({}));
    EXPECT_EQ(second.next_batch(6).samples, (SampleRange{20, 24})) << "saved before the rollback";
  }
  {
    TrainingRun third = start(process.checkpoints.open_last({}));
    take_steps(third, step, 6);
    third.roll_back(6);
    step = 5;
    take_steps_and_save(third, step, 6);
  }
  TrainingRun fourth = start(process.checkpoints.open_last({}));
  EXPECT_EQ(fourth.start().step, 6);
  take_steps(fourth, step, 7);
  EXPECT_EQ(fourth.next_batch(8).samples.end, 36) << "seven steps, and the samples 20 to 23 that are left out";
  fourth.roll_back(7);
  EXPECT_EQ(fourth.next_batch(7).samples.end, 36);
}

}  // namespace
}  // namespace octavo

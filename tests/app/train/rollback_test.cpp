// Tests that a run rolls back to its last checkpoint within a stage, and never to an earlier stage.
#include "app/train/precision_comparison.h"
#include "app/train/run_actions.h"
#include "tests/app/train/run_fixture.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

class RollbackTest : public RunTest {
 protected:
  static void take_steps(SteppedJob& job, int64_t last) {
    while (job.step < last) job.take_step();
  }
  static void take_steps_and_save(SteppedJob& job, int64_t last) {
    take_steps(job, last);
    job.save();
  }
  // Rolls back because of a spike in the loss of the job's last step.
  static void roll_back(SteppedJob& job) {
    PrecisionComparison comparison(job.training);
    RunActions actions(job.process.session, job.training, comparison);
    const StopSignals signals(job.process.session.runtime.group());
    std::optional<Outcome> outcome =
        actions.perform({.next = Next::kToCheckpoint}, {.requests = {.spike = job.step}}, job.step, signals);
    EXPECT_EQ(outcome->ended, Ended::kRollback);
    job.go_on(std::move(*outcome->next));
  }
  // Returns where a job begins that resumes the last checkpoint of the process.
  static Start last_checkpoint(RunProcess& process) {
    std::optional<Checkpoint> last = process.checkpoints.open_last({});
    return {.progress = progress_of(*last), .values = std::move(*last)};
  }
  void damage(int64_t step) const {
    std::filesystem::remove(dir_ / fmt::format("checkpoints/step_{:08}/rank_00000.safetensors", step));
  }
};

// The stages end with steps 4 and 10. The checkpoint of step 3 belongs to the first stage, and that of step 4 starts
// the second stage.
TEST_F(RollbackTest, DoesNotReachAnEarlierStage) {
  RunProcess process(run_config({"training.steps=10", "stages=[{steps: 4}, {steps: 6}]", "checkpoint.keep=0"}));
  {
    SteppedJob first(process);
    first.training.open_log();
    take_steps_and_save(first, 3);
    take_steps_and_save(first, 4);
  }
  const auto spike_of_step_6 = [&](const std::vector<int64_t>& damaged) {
    SteppedJob second(process, last_checkpoint(process));
    EXPECT_EQ(second.step, 4);
    take_steps_and_save(second, 5);
    take_steps(second, 6);
    for (const int64_t number : damaged) damage(number);
    roll_back(second);
    EXPECT_EQ(second.step, 5);
  };
  spike_of_step_6({});
  std::filesystem::remove_all(dir_ / "checkpoints/step_00000005");
  expect_mentions(message_of<Error>([&] {
                    spike_of_step_6({4, 5});
                  }),
                  {"step_00000003, belongs to an earlier stage", "step 6 cannot be rolled back to it"});
}

// Steps 1 to 5 use samples 0 to 19, so step 6 begins with sample 20.
TEST_F(RollbackTest, SkipsTheSamplesOfASpikeAlsoAfterItIsResumed) {
  RunProcess process(run_config({"training.steps=20", "checkpoint.keep=0"}));
  {
    SteppedJob first(process);
    first.training.open_log();
    take_steps_and_save(first, 5);
    take_steps(first, 6);
    roll_back(first);
    EXPECT_EQ(first.training.next_batch(6).samples, (SampleRange{20, 28}));
  }
  {
    SteppedJob second(process, last_checkpoint(process));
    EXPECT_EQ(second.training.next_batch(6).samples, (SampleRange{20, 24})) << "saved before the rollback";
  }
  {
    SteppedJob third(process, last_checkpoint(process));
    take_steps(third, 6);
    roll_back(third);
    take_steps_and_save(third, 6);
  }
  SteppedJob fourth(process, last_checkpoint(process));
  EXPECT_EQ(fourth.step, 6);
  take_steps(fourth, 7);
  EXPECT_EQ(fourth.training.next_batch(8).samples.end, 36) << "seven steps, and the samples 20 to 23 that are left out";
  roll_back(fourth);
  EXPECT_EQ(fourth.training.next_batch(7).samples.end, 36);
}

TEST_F(RollbackTest, IsRefusedAfterTooManyToOneCheckpoint) {
  RunProcess process(run_config({"training.max_skipped_steps=2"}));
  SteppedJob job(process);
  job.training.open_log();
  take_steps_and_save(job, 2);
  for (int i = 0; i < 2; ++i) {
    take_steps(job, 3);
    roll_back(job);
  }
  take_steps_and_save(job, 3);
  take_steps(job, 4);
  roll_back(job);
  EXPECT_EQ(job.step, 3) << "a later checkpoint counts from the beginning";
  take_steps(job, 4);
  roll_back(job);
  take_steps(job, 4);
  expect_mentions(message_of<Error>([&] { roll_back(job); }), {"the loss of step 4 is a spike after 2 rollbacks to"});
}

}  // namespace
}  // namespace octavo

// Tests of the record of a step and of what observers do with it, with steps of a real run on the CPU.
#include "app/observers/step_observer.h"

#include <filesystem>
#include <limits>

#include "tests/app/train/run_fixture.h"

namespace octavo {
namespace {

// Runs steps in the order of the trainer.
class ObservedRun : RunProcess {
 public:
  explicit ObservedRun(const Config& of_run) : RunProcess(of_run), run(job(), session) {
    Start start;
    run.load(run.job(), start);
  }

  Step take_step() {
    ++number_;
    for (const auto& observer : run.observers()) observer->before_batch(number_);
    run.queue_step(run.next_batch(number_), std::numeric_limits<float>::infinity());
    Step step = run.pop_step();
    loader_state_ = step.loader_state;
    for (const auto& observer : run.observers()) {
      if (observer->wants_result(number_)) observer->while_idle(number_);
    }
    return step;
  }

  // Begins the next job, which is in bfloat16 unless `step` is over.
  void use_bfloat16_until(int64_t step) {
    Start start{.progress = {.step = number_, .loader_state = loader_state_, .bfloat16_until = step},
                .values = &run.take_snapshot()};
    run.load(job(start.progress), start);
  }

  // Sets every element of a parameter.
  void set(std::string_view name, float value) {
    for (const ParameterSlice& slice : run.state().parameters.slices()) {
      if (slice.spec->name != name) continue;
      const Tensor weight = run.state().parameters.master(slice);
      std::fill_n(weight.data<float>(), weight.numel(), value);
    }
    cast_weights(run.state());
  }

  Training run;

 private:
  int64_t number_ = 0;
  nlohmann::json loader_state_;
};

class StepObserverTest : public RunTest {
 protected:
  std::string trace_path(int64_t step) const {
    return fmt::format("{}/log/trace_step_{:08}.json", dir_.string(), step);
  }
};

TEST_F(StepObserverTest, OneRecordHasAllOfAStep) {
  ObservedRun run(run_config({"training.z_loss=0.001"}));
  for (int64_t number = 1; number <= 3; ++number) {
    const Step step = run.take_step();
    EXPECT_EQ(step.number, number);
    EXPECT_EQ(step.samples, (SampleRange{4 * (number - 1), 4 * number}));
    EXPECT_EQ(step.batch, nullptr) << "the next batch reuses the memory";
    EXPECT_EQ(step.num_targets(), 4 * 32);
    EXPECT_FALSE(step.skipped);
    EXPECT_NEAR(step.loss(), 5.6, 1);
    EXPECT_EQ(step.row.step, number);
    EXPECT_EQ(step.row.total_steps, 24);
    EXPECT_EQ(step.row.get("loss"), step.loss());
    EXPECT_EQ(step.row.get("grad_norm"), step.grad_norm);
    EXPECT_EQ(step.row.get("tokens"), 4 * 32 * number);
    EXPECT_EQ(step.row.get("step_ms"), step.step_ms);
    EXPECT_GT(step.row.at("lr"), 0);
    EXPECT_GT(step.row.at("z_loss"), 0);
    EXPECT_LT(step.row.at("z_loss"), 0.001 * 10 * 10) << "the square of the logarithm of the normalizer";
    EXPECT_EQ(step.row.by_dataset("epochs").size(), 1u);
    EXPECT_TRUE(step.row.by_dataset("loss_by_dataset").empty()) << "a single dataset has no losses by dataset";
    EXPECT_FALSE(step.row.get("stage"));
  }
}

TEST_F(StepObserverTest, WithoutAScalarItsMetricIsLeftOut) {
  ObservedRun run(run_config());
  EXPECT_FALSE(run.take_step().row.get("z_loss"));
}

TEST_F(StepObserverTest, StatisticsOfFp8AreInTheRowsOfDueSteps) {
  ObservedRun run(run_config(
      {"precision.linear=fp8_tensorwise", "logging.fp8_stats_every=2", "precision.guard={every: 100, steps: 1}"}));
  for (int64_t number = 1; number <= 4; ++number) {
    EXPECT_EQ(run.take_step().row.fp8.size(), number % 2 == 0 ? 2 * 4 * 3 : 0) << "layers, linears, tensors";
  }
  run.use_bfloat16_until(6);
  EXPECT_TRUE(run.take_step().row.in_bfloat16);
  EXPECT_TRUE(run.take_step().row.fp8.empty()) << "in bfloat16";
  run.use_bfloat16_until(6);
  EXPECT_FALSE(run.take_step().row.in_bfloat16);
  EXPECT_FALSE(run.take_step().row.fp8.empty()) << "in FP8 again";
}

// The search for the operation, which the log names, changes no later step. Step 5 is not searched.
TEST_F(StepObserverTest, TheFirstStepThatIsNotFiniteIsExplained) {
  std::vector<double> losses[2];
  for (const bool locates : {false, true}) {
    testing::internal::CaptureStdout();
    ObservedRun run(run_config({fmt::format("training.locate_nonfinite={}", locates)}));
    constexpr const char* kNorm = "model.layers.1.input_layernorm.weight";
    for (int64_t number = 1; number <= 6; ++number) {
      const bool broken = number == 2 || number == 5;
      run.set(kNorm, broken ? std::numeric_limits<float>::quiet_NaN() : 1);
      const Step step = run.take_step();
      EXPECT_EQ(step.skipped, broken) << number;
      if (!broken) losses[locates ? 1 : 0].push_back(step.loss());
    }
    const std::string log = testing::internal::GetCapturedStdout();
    const char* expected =
        "step 2 was computed again with the same weights, and the first result that is not finite is that of "
        "rms_norm_forward in layer 1, forward of micro-batch 0; largest magnitudes: ";
    EXPECT_EQ(log.find(expected) != std::string::npos, locates) << log;
    EXPECT_EQ(log.find("; octavo inspect CONFIG.yaml --samples 4:6 --text prints the samples") != std::string::npos,
              locates)
        << log;
    EXPECT_EQ(log.find("step 5 was computed again"), std::string::npos) << log;
  }
  EXPECT_EQ(losses[1], losses[0]);
}

// The step after it changes the weights before the batch is computed again.
TEST_F(StepObserverTest, AStepThatIsFiniteWhenComputedAgainIsNotExplained) {
  testing::internal::CaptureStdout();
  ObservedRun run(run_config());
  const std::string log = [&] {
    run.run.queue_step(run.run.next_batch(1), std::numeric_limits<float>::infinity());
    Step step = run.run.pop_step();
    step.skipped = true;
    step.grad_norm = std::numeric_limits<double>::infinity();
    for (const auto& observer : run.run.observers()) observer->on_result(step);
    run.run.queue_step(run.run.next_batch(2), std::numeric_limits<float>::infinity());
    run.run.pop_step();
    for (const auto& observer : run.run.observers()) {
      if (observer->wants_result(2)) observer->while_idle(2);
    }
    return testing::internal::GetCapturedStdout();
  }();
  EXPECT_NE(log.find("step 1 was computed again with the weights after step 2, and every result is finite"),
            std::string::npos)
      << log;
}

TEST_F(StepObserverTest, OneStepIsTraced) {
  std::filesystem::create_directories(dir_ / "log");
  ObservedRun run(run_config({"logging.trace.step=2"}));
  for (int64_t number = 1; number <= 3; ++number) {
    run.take_step();
    EXPECT_EQ(std::filesystem::exists(trace_path(2)), number >= 2) << number;
  }
  EXPECT_FALSE(std::filesystem::exists(trace_path(1)));
  EXPECT_FALSE(std::filesystem::exists(trace_path(3)));
}

TEST_F(StepObserverTest, ASoundStateMayBeSaved) {
  ObservedRun run(run_config({"training.corruption_check_every=2"}));
  for (int64_t number = 1; number <= 3; ++number) {
    run.take_step();
    EXPECT_TRUE(run.run.allows_save(number));
  }
}

}  // namespace
}  // namespace octavo

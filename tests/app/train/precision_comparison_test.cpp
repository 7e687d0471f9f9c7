// Tests that a comparison of FP8 with bfloat16 either leaves no trace in the run, or rolls the run back and continues
// it in bfloat16.
#include "app/train/precision_comparison.h"

#include <cmath>
#include <limits>
#include <optional>

#include "tests/app/train/run_fixture.h"

namespace octavo {
namespace {

using Losses = std::vector<double>;

TEST(PrecisionGapTest, IsTheMeanDifferenceRelativeToTheLossInBFloat16) {
  EXPECT_DOUBLE_EQ(precision_gap(Losses{4.5, 3.75}, Losses{4, 4}), 0.75 / 8);
  EXPECT_EQ(precision_gap(Losses{4}, Losses{4}), 0);
}

TEST(PrecisionGapTest, IsInfiniteWhereALossIsNotFinite) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isinf(precision_gap(Losses{4, nan}, Losses{4, 4})));
  EXPECT_TRUE(std::isinf(precision_gap(Losses{4, 4}, Losses{4, nan})));
}

// Runs steps in the order of the training loop.
class ComparedRun : RunProcess {
 public:
  explicit ComparedRun(const Config& of_run) : RunProcess(of_run), job(*this) { comparison.emplace(job.training); }

  Losses take_steps(int64_t count) {
    Losses losses;
    for (int64_t i = 0; i < count; ++i) {
      losses.push_back(job.take_step().loss());
      comparison->add(job.step, losses.back(), true);
    }
    return losses;
  }
  void begin_comparison() { comparison->begin(job.progress()); }
  void fall_back() { go_on({.progress = comparison->fallback(), .values = &job.training.snapshot()}); }
  void return_to_fp8() { go_on({.progress = job.progress(), .values = &job.training.take_snapshot()}); }
  bool in_bfloat16() const { return in_fallback(job.training.job()); }

  SteppedJob job;
  std::optional<PrecisionComparison> comparison;

 private:
  void go_on(Start start) {
    job.go_on(std::move(start));
    comparison.emplace(job.training);
  }
};

class PrecisionComparisonTest : public RunTest {
 protected:
  Config config(const std::string& recipe, const std::string& guard = "") const {
    return run_config({"precision.linear=" + recipe, "precision.amax_history=4",
                       "precision.guard={every: 4, steps: 3, fallback_steps: 5" + guard + "}"});
  }

  // Returns the losses of a run that falls back to bfloat16 after the first of these numbers of steps, and returns to
  // FP8 after the second.
  static std::vector<Losses> steps_by_hand(const Config& config, const std::vector<int64_t>& counts) {
    ComparedRun run(config);
    std::vector<Losses> losses{run.take_steps(counts[0])};
    Start start{.progress = run.job.progress(), .values = &run.job.training.take_snapshot()};
    start.progress.bfloat16_until = counts[0] + counts[1];
    run.job.go_on(std::move(start));
    losses.push_back(run.take_steps(counts[1]));
    run.return_to_fp8();
    losses.push_back(run.take_steps(counts[2]));
    return losses;
  }
};

TEST_F(PrecisionComparisonTest, LeavesNoTrace) {
  for (const char* recipe : {"fp8_delayed", "fp8_tensorwise"}) {
    const Losses expected = ComparedRun(config(recipe)).take_steps(12);
    ComparedRun compared(config(recipe));
    Losses losses = compared.take_steps(4);
    ASSERT_TRUE(compared.comparison->due(4));
    compared.begin_comparison();
    EXPECT_FALSE(compared.comparison->due(8)) << "a comparison is running";
    for (int64_t i = 0; i < 8; ++i) {
      EXPECT_EQ(compared.comparison->running(), i < 3) << i;
      losses.push_back(compared.take_steps(1).front());
      ASSERT_EQ(compared.comparison->gap().has_value(), i == 2) << i;
      const double gap = compared.comparison->gap().value_or(1e-3);
      EXPECT_TRUE(gap > 0 && gap < 0.01) << gap;
    }
    EXPECT_EQ(losses, expected) << recipe;
  }
}

TEST_F(PrecisionComparisonTest, RollsBackAndContinuesInBFloat16) {
  const Config fallback = config("fp8_delayed", ", tolerance: 1e-9, action: bfloat16");
  const std::vector<Losses> expected = steps_by_hand(fallback, {4, 5, 3});
  ComparedRun compared(fallback);
  EXPECT_EQ(compared.take_steps(4), expected[0]);
  compared.begin_comparison();
  compared.take_steps(3);
  EXPECT_TRUE(compared.comparison->wants_rollback());
  // On a GPU, more steps are already queued when the ranks learn of the gap.
  compared.take_steps(2);
  compared.fall_back();
  EXPECT_TRUE(compared.in_bfloat16());
  EXPECT_EQ(compared.job.step, 4);
  EXPECT_EQ(compared.job.training.start().bfloat16_until, 9);
  EXPECT_FALSE(compared.comparison->due(4)) << "the run is in bfloat16";
  EXPECT_EQ(compared.take_steps(5), expected[1]);
  EXPECT_FALSE(compared.comparison->ends_fallback(8));
  ASSERT_TRUE(compared.comparison->ends_fallback(9));
  compared.return_to_fp8();
  EXPECT_FALSE(compared.in_bfloat16());
  EXPECT_EQ(compared.take_steps(3), expected[2]);
}

// The second comparison begins while the run still repeats batches of the first one.
TEST_F(PrecisionComparisonTest, RepeatsBatchesOfTwoComparisons) {
  const Config longer = run_config(
      {"precision.linear=fp8_tensorwise", "precision.guard={every: 2, steps: 6, fallback_steps: 1, tolerance: 1e-9}"});
  const Losses expected = steps_by_hand(longer, {2, 1, 9}).back();
  ComparedRun compared(longer);
  compared.take_steps(2);
  compared.begin_comparison();
  compared.take_steps(6);
  compared.fall_back();
  compared.take_steps(1);
  compared.return_to_fp8();
  Losses losses = compared.take_steps(1);
  compared.begin_comparison();
  for (const double loss : compared.take_steps(8)) losses.push_back(loss);
  EXPECT_EQ(losses, expected);
}

TEST_F(PrecisionComparisonTest, AsksForARollbackAboveTheToleranceOnly) {
  const auto wants_rollback = [&](const std::string& guard) {
    ComparedRun compared(config("fp8_delayed", guard));
    compared.begin_comparison();
    compared.take_steps(3);
    EXPECT_TRUE(compared.comparison->gap().has_value());
    return compared.comparison->wants_rollback();
  };
  EXPECT_FALSE(wants_rollback(", tolerance: 0.5, action: bfloat16"));
  EXPECT_FALSE(wants_rollback(", tolerance: 1e-9"));
  EXPECT_TRUE(wants_rollback(", tolerance: 1e-9, action: bfloat16"));
}

TEST_F(PrecisionComparisonTest, HasNothingToCompareWithoutFp8) {
  EXPECT_FALSE(ComparedRun(config("bfloat16")).comparison->due(4));
}

}  // namespace
}  // namespace octavo

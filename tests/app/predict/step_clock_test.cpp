#include "app/predict/step_clock.h"

#include <gtest/gtest.h>

namespace octavo::pipeline_clock_test {
namespace {

using Kind = StepEntry::Kind;
using Schedule = PipelineSchedule;

// Times of the entries of a stage, with a backward that takes twice as long as a forward.
double entry_seconds(const StepEntry& entry) { return entry.kind == Kind::kBackward ? 2 : 1; }

PipelineTimes times_of(Schedule schedule, int64_t stages, int64_t micro_batches, double transfer_s = 0,
                       double last_is_slower = 1, int64_t chunks = 1) {
  return pipeline_times({.schedule = schedule,
                         .stages = stages,
                         .chunks = chunks,
                         .micro_batches = micro_batches,
                         .seconds =
                             [&](int64_t stage, const StepEntry& entry) {
                               return entry_seconds(entry) * (stage + 1 == stages ? last_is_slower : 1);
                             },
                         .transfer_s = transfer_s});
}

TEST(PipelineClock, BubblesOfEqualStagesAreThoseOfTheFormula) {
  for (int64_t stages = 1; stages <= 8; ++stages) {
    for (const int64_t micro_batches : {stages, stages + 1, 4 * stages}) {
      const auto p = static_cast<double>(stages);
      const auto m = static_cast<double>(micro_batches);
      const PipelineTimes one = times_of(Schedule::kOneForwardOneBackward, stages, micro_batches);
      for (const double busy_s : one.busy_s) {
        EXPECT_DOUBLE_EQ(busy_s, 3 * m);
        EXPECT_DOUBLE_EQ(1 - busy_s / one.end_s, (p - 1) / (m + p - 1));
      }
      for (int64_t chunks = 2; chunks <= 4 && micro_batches % stages == 0; ++chunks) {
        const auto v = static_cast<double>(chunks);
        const PipelineTimes times = times_of(Schedule::kInterleaved, stages, micro_batches, 0, 1, chunks);
        for (const double busy_s : times.busy_s) {
          EXPECT_DOUBLE_EQ(busy_s, 3 * v * m);
          EXPECT_DOUBLE_EQ(times.end_s, busy_s * (1 + (p - 1) / (v * m)));
        }
      }
      // Gradients of weights fill two thirds of the bubbles.
      EXPECT_DOUBLE_EQ(times_of(Schedule::kZeroBubble, stages, micro_batches).end_s, 3 * m + (p - 1));
    }
  }
}

TEST(PipelineClock, TheSlowestStageDecides) {
  const PipelineTimes times = times_of(Schedule::kOneForwardOneBackward, 4, 16, 0, 1.5);
  EXPECT_DOUBLE_EQ(times.busy_s[3], 1.5 * times.busy_s[0]);
  // The last stage waits only for the first forward and for the end of the last backward.
  EXPECT_DOUBLE_EQ(times.end_s, times.busy_s[3] + 3 * 3);
}

// With two stages, the second stage runs one micro-batch while a gradient travels to the first stage, and the output of
// the next but one micro-batch comes back. So it waits for two transfers per two micro-batches.
TEST(PipelineClock, TransfersTakeTime) {
  constexpr double kTransfer = 0.25;
  const double without = times_of(Schedule::kOneForwardOneBackward, 2, 8).end_s;
  EXPECT_DOUBLE_EQ(times_of(Schedule::kOneForwardOneBackward, 2, 8, kTransfer).end_s, without + 8 * kTransfer);
  EXPECT_EQ(times_of(Schedule::kOneForwardOneBackward, 1, 8, kTransfer).end_s, 8 * 3);
  for (const Schedule schedule : {Schedule::kOneForwardOneBackward, Schedule::kZeroBubble}) {
    EXPECT_GT(times_of(schedule, 4, 16, kTransfer).end_s, times_of(schedule, 4, 16).end_s);
  }
}

// Transfers that take longer than the compute decide the time of a step, because a link has one transfer at a time.
TEST(PipelineClock, ALinkHasOneTransferAtATime) {
  EXPECT_GT(times_of(Schedule::kOneForwardOneBackward, 2, 8, 10).end_s, 8 * 10);
}

}  // namespace
}  // namespace octavo::pipeline_clock_test

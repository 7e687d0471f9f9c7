#include "model/step_entries.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "core/error.h"

namespace octavo::step_entries_test {
namespace {

// Returns text like "F0 B0 F1 B1": forward and backward of micro-batches 0 and 1.
std::string text_of(const std::vector<StepEntry>& entries) {
  std::string text;
  for (const StepEntry& entry : entries) {
    if (!text.empty()) text += ' ';
    text += (entry.kind == StepEntry::Kind::kForward ? 'F' : 'B') + std::to_string(entry.micro_batch);
  }
  return text;
}

TEST(StepEntries, OneInFlightIsOneAfterTheOther) {
  EXPECT_EQ(text_of(step_entries(0)), "");
  EXPECT_EQ(text_of(step_entries(1)), "F0 B0");
  EXPECT_EQ(text_of(step_entries(3)), "F0 B0 F1 B1 F2 B2");
}

TEST(StepEntries, SeveralInFlightTakeTurns) {
  EXPECT_EQ(text_of(step_entries(4, 2)), "F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(text_of(step_entries(4, 3)), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(text_of(step_entries(2, 5)), "F0 F1 B0 B1");
  EXPECT_THROW(step_entries(2, 0), Error);
}

TEST(StepEntries, EveryMicroBatchOnceInOrderAndInItsPlace) {
  for (int64_t micro_batches = 0; micro_batches < 9; ++micro_batches) {
    for (int64_t in_flight = 1; in_flight < 11; ++in_flight) {
      SCOPED_TRACE(testing::Message() << micro_batches << " micro-batches, " << in_flight << " in flight");
      int64_t forwards = 0;
      int64_t backwards = 0;
      int64_t most = 0;
      for (const StepEntry& entry : step_entries(micro_batches, in_flight)) {
        int64_t& next = entry.kind == StepEntry::Kind::kForward ? forwards : backwards;
        EXPECT_EQ(entry.micro_batch, next++);
        EXPECT_LE(backwards, forwards) << "a backward before its forward";
        most = std::max(most, forwards - backwards + (entry.kind == StepEntry::Kind::kBackward ? 1 : 0));
      }
      EXPECT_EQ(forwards, micro_batches);
      EXPECT_EQ(backwards, micro_batches);
      EXPECT_EQ(most, std::min(micro_batches, in_flight));
    }
  }
}

}  // namespace
}  // namespace octavo::step_entries_test

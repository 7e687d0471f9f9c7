#include "model/pipeline_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace octavo::pipeline_schedule_test {
namespace {

using Kind = StepEntry::Kind;
using Schedule = PipelineSchedule;

struct Times {
  int64_t forward = 1, inputs = 1, weights = 1;
  int64_t of(Kind kind) const {
    if (kind == Kind::kForward) return forward;
    if (kind == Kind::kBackward) return inputs + weights;
    return kind == Kind::kBackwardInput ? inputs : weights;
  }
};

// All stages of a step, which run their lists at the same time.
class Simulation {
 public:
  Simulation(Schedule schedule, int64_t stages, int64_t micro_batches, Times times = {}) : times_(times) {
    for (int64_t s = 0; s < stages; ++s) {
      lists_.push_back(pipeline_entries(schedule, {.stages = stages, .stage = s}, micro_batches));
    }
    next_.resize(lists_.size());
    idle_at_.resize(lists_.size());
    bool moves = true;
    while (moves) {
      moves = false;
      for (size_t s = 0; s < lists_.size(); ++s) {
        while (next_[s] < lists_[s].size() && run(s, lists_[s][next_[s]])) {
          ++next_[s];
          moves = true;
        }
      }
    }
  }

  const std::vector<std::vector<StepEntry>>& lists() const { return lists_; }
  // Returns whether no stage waits forever.
  bool ends() const {
    for (size_t s = 0; s < lists_.size(); ++s) {
      if (next_[s] != lists_[s].size()) return false;
    }
    return true;
  }
  // Returns the time from the beginning of the first stage to the end of the last one.
  int64_t time() const { return *std::max_element(idle_at_.begin(), idle_at_.end()); }

 private:
  // Runs an entry if its input is there.
  bool run(size_t stage, const StepEntry& entry) {
    const bool is_forward = entry.kind == Kind::kForward;
    int64_t begin = idle_at_[stage];
    const bool at_end = stage == (is_forward ? 0 : lists_.size() - 1);
    if (!at_end && entry.kind != Kind::kBackwardWeights) {
      const auto input = done_.find({is_forward, entry.micro_batch, is_forward ? stage - 1 : stage + 1});
      if (input == done_.end()) return false;
      begin = std::max(begin, input->second);
    }
    idle_at_[stage] = begin + times_.of(entry.kind);
    if (entry.kind != Kind::kBackwardWeights) done_[{is_forward, entry.micro_batch, stage}] = idle_at_[stage];
    return true;
  }

  Times times_;
  std::vector<std::vector<StepEntry>> lists_;
  std::vector<size_t> next_;
  std::vector<int64_t> idle_at_;
  // Time at which the output of a forward, or the gradient of the input, of a micro-batch is complete on a stage.
  std::map<std::tuple<bool, int64_t, size_t>, int64_t> done_;
};

void for_all_sizes(const auto& test) {
  for (const Schedule schedule : {Schedule::kOneForwardOneBackward, Schedule::kZeroBubble}) {
    for (int64_t stages = 1; stages <= 9; ++stages) {
      for (int64_t micro_batches = 1; micro_batches <= 3 * stages + 1; ++micro_batches) {
        SCOPED_TRACE(testing::Message() << "schedule " << static_cast<int>(schedule) << ", " << stages << " stages, "
                                        << micro_batches << " micro-batches");
        test(schedule, stages, micro_batches);
      }
    }
  }
}

TEST(PipelineSchedule, EveryMicroBatchOnceAndInOrder) {
  for_all_sizes([](Schedule schedule, int64_t stages, int64_t micro_batches) {
    for (int64_t stage = 0; stage < stages; ++stage) {
      std::map<Kind, int64_t> next;
      for (const StepEntry& entry : pipeline_entries(schedule, {.stages = stages, .stage = stage}, micro_batches)) {
        EXPECT_EQ(entry.micro_batch, next[entry.kind]++);
        if (entry.kind == Kind::kBackward || entry.kind == Kind::kBackwardInput) {
          EXPECT_LT(entry.micro_batch, next[Kind::kForward]);
        }
        if (entry.kind == Kind::kBackwardWeights) {
          EXPECT_LT(entry.micro_batch, next[Kind::kBackwardInput]);
        }
      }
      std::map<Kind, int64_t> expected = {{Kind::kForward, micro_batches}, {Kind::kBackward, micro_batches}};
      if (splits_backward(schedule, {.stages = stages, .stage = stage})) {
        expected = {{Kind::kForward, micro_batches},
                    {Kind::kBackwardInput, micro_batches},
                    {Kind::kBackwardWeights, micro_batches}};
      }
      EXPECT_EQ(next, expected);
    }
  });
}

TEST(PipelineSchedule, NoStageWaitsForever) {
  for_all_sizes([](Schedule schedule, int64_t stages, int64_t micro_batches) {
    EXPECT_TRUE(Simulation(schedule, stages, micro_batches).ends());
  });
}

TEST(PipelineSchedule, MicroBatchesInFlight) {
  for_all_sizes([](Schedule schedule, int64_t stages, int64_t micro_batches) {
    for (int64_t stage = 0; stage < stages; ++stage) {
      const PipelinePlace place{.stages = stages, .stage = stage};
      const int64_t most = pipeline_in_flight(schedule, place, micro_batches);
      EXPECT_LE(most, stages);
      std::set<int64_t> slots;  // Activations are in slot micro_batch mod most.
      size_t found = 0;
      for (const StepEntry& entry : pipeline_entries(schedule, place, micro_batches)) {
        if (entry.kind == Kind::kForward) {
          EXPECT_TRUE(slots.insert(entry.micro_batch % most).second);
        } else if (entry.kind != Kind::kBackwardInput) {
          slots.erase(entry.micro_batch % most);
        }
        found = std::max(found, slots.size());
      }
      EXPECT_EQ(found, static_cast<size_t>(most));
    }
  });
}

TEST(PipelineSchedule, IdleTimeIsThatOfTheFormula) {
  for_all_sizes([](Schedule schedule, int64_t stages, int64_t micro_batches) {
    if (micro_batches < stages) return;
    constexpr Times kTimes{.forward = 5, .inputs = 5, .weights = 5};
    const int64_t of_entries = micro_batches * (kTimes.forward + kTimes.inputs + kTimes.weights);
    const int64_t saved = schedule == Schedule::kZeroBubble ? 2 * kTimes.weights : 0;
    const int64_t idle = (stages - 1) * (kTimes.forward + kTimes.inputs + kTimes.weights - saved);
    EXPECT_EQ(Simulation(schedule, stages, micro_batches, kTimes).time(), of_entries + idle);
  });
}

TEST(PipelineSchedule, OneStageRunsOneMicroBatchAfterAnother) {
  EXPECT_EQ(pipeline_entries(Schedule::kZeroBubble, {}, 3), step_entries(3));
  EXPECT_EQ(pipeline_in_flight(Schedule::kZeroBubble, {}, 3), 1);
}

}  // namespace
}  // namespace octavo::pipeline_schedule_test

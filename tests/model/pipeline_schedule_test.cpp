#include "model/pipeline_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "core/error.h"

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

// All stages of a step, which run their lists at the same time. As in parallel/pipeline_group.h a stage accepts the
// input of an entry when the entry before it begins, and a link has a buffer for one tensor.
class Simulation {
 public:
  Simulation(Schedule schedule, int64_t chunks, int64_t stages, int64_t micro_batches, Times times = {})
      : times_(times), last_part_(stages * chunks - 1), stages_(static_cast<size_t>(stages)) {
    for (int64_t s = 0; s < stages; ++s) {
      stage(s).entries = pipeline_entries(schedule, {.stages = stages, .stage = s, .chunks = chunks}, micro_batches);
      accept(s, 0);
    }
    for (bool moves = true; moves;) {
      moves = false;
      for (int64_t s = 0; s < stages; ++s) {
        while (begin(s) && end(s)) moves = true;
      }
    }
  }

  // Returns whether no stage waits forever, and every stage receives the tensors that it expects.
  bool ends() const {
    return is_right_ &&
           std::all_of(stages_.begin(), stages_.end(), [](const Stage& s) { return s.next == s.entries.size(); });
  }
  // Returns the time from the beginning of the first stage to the end of the last one.
  int64_t time() const {
    int64_t time = 0;
    for (const Stage& s : stages_) time = std::max(time, s.now);
    return time;
  }

 private:
  // Tensor that a part of the model computes and the next or the previous part takes.
  struct Output {
    int64_t micro_batch, part;
    bool operator==(const Output&) const = default;
  };
  struct Link {
    std::vector<std::pair<Output, int64_t>> sent;  // Tensors, and the times at which they were sent.
    std::vector<int64_t> accepted;                 // Times from which the receiver accepts them.
    size_t taken = 0;
  };
  struct Stage {
    std::vector<StepEntry> entries;
    size_t next = 0;
    bool runs = false;
    int64_t now = 0;
    Link activations, gradients;  // Links to the next and to the previous stage.
  };

  Stage& stage(int64_t s) { return stages_[static_cast<size_t>((s + std::ssize(stages_)) % std::ssize(stages_))]; }
  int64_t part_of(int64_t s, const StepEntry& entry) const { return entry.chunk * std::ssize(stages_) + s; }
  Link* input(int64_t s, const StepEntry& entry) {
    if (entry.kind == Kind::kBackwardWeights) return nullptr;
    if (entry.kind == Kind::kForward) return part_of(s, entry) > 0 ? &stage(s - 1).activations : nullptr;
    return part_of(s, entry) < last_part_ ? &stage(s + 1).gradients : nullptr;
  }
  Link* output(int64_t s, const StepEntry& entry) {
    if (entry.kind == Kind::kBackwardWeights) return nullptr;
    if (entry.kind == Kind::kForward) return part_of(s, entry) < last_part_ ? &stage(s).activations : nullptr;
    return part_of(s, entry) > 0 ? &stage(s).gradients : nullptr;
  }

  void accept(int64_t s, size_t entry) {
    if (entry == stage(s).entries.size()) return;
    if (Link* link = input(s, stage(s).entries[entry])) link->accepted.push_back(stage(s).now);
  }

  // Begins the next entry if its input is there.
  bool begin(int64_t s) {
    Stage& it = stage(s);
    if (it.next == it.entries.size()) return false;
    if (it.runs) return true;
    const StepEntry& entry = it.entries[it.next];
    if (Link* link = input(s, entry)) {
      if (link->taken == link->sent.size()) return false;
      const auto& [output, time] = link->sent[link->taken++];
      const int64_t from = part_of(s, entry) + (entry.kind == Kind::kForward ? -1 : 1);
      is_right_ = is_right_ && output == Output{entry.micro_batch, from};
      it.now = std::max(it.now, time);
    }
    accept(s, it.next + 1);
    it.now += times_.of(entry.kind);
    return it.runs = true;
  }

  // Ends the entry that runs if the buffer of its output is free.
  bool end(int64_t s) {
    Stage& it = stage(s);
    const StepEntry& entry = it.entries[it.next];
    if (Link* link = output(s, entry)) {
      const size_t before = link->sent.size();
      if (link->accepted.size() < before) return false;
      if (before > 0) it.now = std::max(it.now, link->accepted[before - 1]);
      link->sent.push_back({{entry.micro_batch, part_of(s, entry)}, it.now});
    }
    it.runs = false;
    ++it.next;
    return true;
  }

  Times times_;
  int64_t last_part_;
  std::vector<Stage> stages_;
  bool is_right_ = true;
};

struct Sizes {
  Schedule schedule;
  int64_t chunks, stages, micro_batches;
  PipelinePosition position(int64_t stage) const { return {.stages = stages, .stage = stage, .chunks = chunks}; }
};

void for_all_sizes(const auto& test) {
  const auto run = [&](const Sizes& sizes) {
    SCOPED_TRACE(testing::Message() << "schedule " << static_cast<int>(sizes.schedule) << ", " << sizes.stages
                                    << " stages of " << sizes.chunks << " chunks, " << sizes.micro_batches
                                    << " micro-batches");
    test(sizes);
  };
  for (int64_t stages = 1; stages <= 9; ++stages) {
    for (int64_t micro_batches = 1; micro_batches <= 3 * stages + 1; ++micro_batches) {
      run({Schedule::kOneForwardOneBackward, 1, stages, micro_batches});
      run({Schedule::kZeroBubble, 1, stages, micro_batches});
      for (int64_t chunks = 1; micro_batches % stages == 0 && chunks <= 5; ++chunks) {
        run({Schedule::kInterleaved, chunks, stages, micro_batches});
      }
    }
  }
}

TEST(PipelineSchedule, EveryMicroBatchAndChunkOnceAndInOrder) {
  for_all_sizes([](const Sizes& sizes) {
    for (int64_t stage = 0; stage < sizes.stages; ++stage) {
      using KindAndChunk = std::pair<Kind, int64_t>;
      std::map<KindAndChunk, int64_t> next, expected;
      const bool splits = splits_backward(sizes.schedule, sizes.position(stage));
      for (const StepEntry& entry : pipeline_entries(sizes.schedule, sizes.position(stage), sizes.micro_batches)) {
        EXPECT_EQ(entry.micro_batch, (next[{entry.kind, entry.chunk}]++));
        if (entry.kind == Kind::kForward) continue;
        const Kind before = entry.kind == Kind::kBackwardWeights ? Kind::kBackwardInput : Kind::kForward;
        EXPECT_LT(entry.micro_batch, (next[{before, entry.chunk}]));
      }
      for (int64_t chunk = 0; chunk < sizes.chunks; ++chunk) {
        expected[{Kind::kForward, chunk}] = sizes.micro_batches;
        expected[{splits ? Kind::kBackwardInput : Kind::kBackward, chunk}] = sizes.micro_batches;
        if (splits) expected[{Kind::kBackwardWeights, chunk}] = sizes.micro_batches;
      }
      EXPECT_EQ(next, expected);
    }
  });
}

TEST(PipelineSchedule, NoStageWaitsForever) {
  for_all_sizes([](const Sizes& sizes) {
    for (const Times& times : {Times{}, Times{.forward = 7, .inputs = 2, .weights = 1}}) {
      EXPECT_TRUE(Simulation(sizes.schedule, sizes.chunks, sizes.stages, sizes.micro_batches, times).ends());
    }
  });
}

// The gradients of norms are zeroed in the first entry, and reduced in the last one that computes some.
TEST(PipelineSchedule, TheFirstChunkIsTheFirstAndTheLast) {
  for_all_sizes([](const Sizes& sizes) {
    const std::vector<StepEntry> entries =
        pipeline_entries(sizes.schedule, sizes.position(sizes.stages - 1), sizes.micro_batches);
    EXPECT_EQ(entries.front(), (StepEntry{Kind::kForward, 0, 0}));
    EXPECT_EQ(entries.back().micro_batch, sizes.micro_batches - 1);
    EXPECT_EQ(entries.back().chunk, 0);
  });
}

TEST(PipelineSchedule, MicroBatchesInFlight) {
  for_all_sizes([](const Sizes& sizes) {
    for (int64_t stage = 0; stage < sizes.stages; ++stage) {
      const std::vector<int64_t> most = pipeline_in_flight(sizes.schedule, sizes.position(stage), sizes.micro_batches);
      const std::vector<int64_t> of_more =
          pipeline_in_flight(sizes.schedule, sizes.position(stage), sizes.micro_batches + sizes.stages);
      std::set<std::pair<int64_t, int64_t>> slots;  // Activations of a chunk are in slot micro_batch mod most.
      size_t found = 0;
      for (const StepEntry& entry : pipeline_entries(sizes.schedule, sizes.position(stage), sizes.micro_batches)) {
        const auto chunk = static_cast<size_t>(entry.chunk);
        const std::pair slot(entry.chunk, entry.micro_batch % most[chunk]);
        if (entry.kind == Kind::kForward) {
          EXPECT_TRUE(slots.insert(slot).second);
        } else if (entry.kind != Kind::kBackwardInput) {
          slots.erase(slot);
        }
        found = std::max(found, slots.size());
      }
      // A stage of 1f1b holds the activations of at most p micro-batches. A stage of interleaved holds at most those of
      // p - 1 further chunks.
      const bool interleaved = sizes.schedule == Schedule::kInterleaved;
      const int64_t bound = sizes.chunks * sizes.stages + (interleaved ? sizes.stages - 1 : 0);
      EXPECT_LE(static_cast<int64_t>(found), bound);
      for (size_t chunk = 0; chunk < most.size(); ++chunk) {
        EXPECT_LE(most[chunk], (interleaved ? 2 : 1) * sizes.stages);
        EXPECT_LE(most[chunk], of_more[chunk]);
      }
      if (sizes.chunks == 1) {
        EXPECT_EQ(static_cast<int64_t>(found), most[0]);
      }
    }
  });
}

TEST(PipelineSchedule, IdleTimeIsThatOfTheFormula) {
  for_all_sizes([](const Sizes& sizes) {
    const auto& [schedule, chunks, stages, micro_batches] = sizes;
    if (micro_batches < stages) return;
    constexpr Times kTimes{.forward = 5, .inputs = 5, .weights = 5};
    constexpr int64_t kOfMicroBatch = kTimes.forward + kTimes.inputs + kTimes.weights;  // Time of a chunk.
    const int64_t saved = schedule == Schedule::kZeroBubble ? 2 * kTimes.weights : 0;
    const int64_t idle = (stages - 1) * (kOfMicroBatch - saved);
    EXPECT_EQ(Simulation(schedule, chunks, stages, micro_batches, kTimes).time(),
              micro_batches * chunks * kOfMicroBatch + idle);
  });
}

// The example of figure 4 in Narayanan et al.: 4 stages of 2 chunks. A letter in lower case is a backward.
TEST(PipelineSchedule, Interleaved) {
  std::string text;
  for (const StepEntry& entry : pipeline_entries(Schedule::kInterleaved, {.stages = 4, .stage = 3, .chunks = 2}, 4)) {
    const char letter = static_cast<char>((entry.kind == Kind::kForward ? 'A' : 'a') + entry.chunk);
    text += letter + std::to_string(entry.micro_batch) + " ";
  }
  EXPECT_EQ(text, "A0 A1 A2 A3 B0 b0 B1 b1 B2 b2 B3 b3 a0 a1 a2 a3 ");
  EXPECT_THROW(pipeline_entries(Schedule::kInterleaved, {.stages = 4, .stage = 0, .chunks = 2}, 6), Error);
  EXPECT_THROW(pipeline_entries(Schedule::kOneForwardOneBackward, {.stages = 4, .stage = 0, .chunks = 2}, 4), Error);
}

TEST(PipelineSchedule, OneStageRunsOneMicroBatchAfterAnother) {
  EXPECT_EQ(pipeline_entries(Schedule::kZeroBubble, {}, 3), step_entries(3));
  EXPECT_EQ(pipeline_in_flight(Schedule::kZeroBubble, {}, 3), (std::vector<int64_t>{1}));
}

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
}  // namespace octavo::pipeline_schedule_test

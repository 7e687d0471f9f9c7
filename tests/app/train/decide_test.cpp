// Tests of decisions after a step: each rule of decide(), and its guarantees over random sequences of events.
#include "app/train/decide.h"

#include <gtest/gtest.h>

#include <random>

namespace octavo {
namespace {

Facts with_due(Due due) { return {.due = due}; }

TEST(DecideTest, AStepWithNothingDueContinues) { EXPECT_EQ(decide({}), Actions{}); }

TEST(DecideTest, ARunGivesUpWhateverElseIsDueOrWished) {
  const Facts facts{.due = {.last = true, .save = true},
                    .requests = {.stop = true, .roll_back_to = RollBack::kCheckpoint},
                    .skipping = true,
                    .over_limit = true,
                    .has_checkpoint = true};
  EXPECT_EQ(decide(facts), (Actions{.save = Save::kLastGood, .next = Next::kGiveUp}));
}

TEST(DecideTest, ARunThatFailsInFp8FallsBackToBFloat16BeforeItGivesUp) {
  const Facts facts{
      .requests = {.roll_back_to = RollBack::kComparison}, .skipping = true, .over_limit = true, .comparing = true};
  EXPECT_EQ(decide(facts), (Actions{.next = Next::kToComparison}));
}

TEST(DecideTest, AStopSavesUnlessTheRunWasToRollBack) {
  Facts facts{.requests = {.stop = true}};
  EXPECT_EQ(decide(facts), (Actions{.save = Save::kFinal, .next = Next::kStop}));
  facts.save_allowed = false;
  EXPECT_EQ(decide(facts), (Actions{.save = Save::kRefused, .next = Next::kStop}));
  facts.save_allowed = true;
  for (const RollBack target : {RollBack::kCheckpoint, RollBack::kComparison}) {
    facts.requests.roll_back_to = target;
    facts.has_checkpoint = true;
    EXPECT_EQ(decide(facts), (Actions{.notice = Notice::kNotSaved, .next = Next::kStop}));
    facts.has_checkpoint = false;  // A checkpoint of a doubtful state is better than none.
    EXPECT_EQ(decide(facts), (Actions{.save = Save::kFinal, .next = Next::kStop}));
  }
}

TEST(DecideTest, ARollbackSavesNothingAndOwesNothing) {
  Facts facts{.due = {.last = true, .save = true, .comparison = true},
              .requests = {.roll_back_to = RollBack::kCheckpoint, .spike = 7},
              .has_checkpoint = true,
              .save_postponed = true};
  EXPECT_EQ(decide(facts), (Actions{.next = Next::kToCheckpoint}));
  facts.requests.roll_back_to = RollBack::kComparison;
  EXPECT_EQ(decide(facts), (Actions{.next = Next::kToComparison}));
}

TEST(DecideTest, ARollbackWithoutACheckpointContinuesAndSaysSo) {
  Facts facts{.due = {.save = true, .validation = true}, .requests = {.roll_back_to = RollBack::kCheckpoint}};
  EXPECT_EQ(decide(facts), (Actions{.notice = Notice::kNoCheckpoint, .save = Save::kOnDisk}));
  EXPECT_TRUE(validates(facts));
  facts.due.last = true;
  EXPECT_EQ(decide(facts), (Actions{.notice = Notice::kNoCheckpoint, .save = Save::kFinal, .next = Next::kDone}));
}

TEST(DecideTest, TheLastStepSavesTheFinalState) {
  Facts facts = with_due({.last = true, .save = true, .memory_save = true});
  EXPECT_EQ(decide(facts), (Actions{.save = Save::kFinal, .next = Next::kDone}));
  facts.save_allowed = false;
  EXPECT_EQ(decide(facts), (Actions{.save = Save::kRefused, .next = Next::kDone}));
}

TEST(DecideTest, ASaveIsOwedWhileTheStateIsUnsettled) {
  for (const bool by_clock : {false, true}) {
    Facts facts{.due = {.save = !by_clock}, .requests = {.save = by_clock}};
    EXPECT_EQ(decide(facts), (Actions{.save = Save::kOnDisk}));
    facts.save_postponed = true;
    EXPECT_EQ(decide(facts), (Actions{.save = Save::kOnDisk}));
    facts.skipping = true;
    EXPECT_EQ(decide(facts), (Actions{.save_postponed = true}));
    facts.skipping = false;
    facts.comparing = true;
    EXPECT_EQ(decide(facts), (Actions{.save_postponed = true}));
  }
}

TEST(DecideTest, ASaveIsOwedWhileAnEarlierOneIsWrittenAndThisIsSaidOnce) {
  Facts facts{.due = {.save = true}, .save_waits = true};
  EXPECT_EQ(decide(facts), (Actions{.notice = Notice::kSavePostponed, .save_postponed = true}));
  facts.save_postponed = true;
  EXPECT_EQ(decide(facts), (Actions{.save_postponed = true}));
  facts.due.save = false;  // An owed save stays owed while another save is being written.
  EXPECT_EQ(decide(facts), (Actions{.save_postponed = true}));
}

// If the save were owed, each later step would wait for its result and compare the replicas again.
TEST(DecideTest, ASaveThatIsRefusedIsNotOwed) {
  for (const bool by_clock : {false, true}) {
    const Facts facts{
        .due = {.save = !by_clock}, .requests = {.save = by_clock}, .save_allowed = false, .save_postponed = true};
    EXPECT_EQ(decide(facts), Actions{});
  }
}

TEST(DecideTest, ASaveInMemoryYieldsToOneOnDisk) {
  Facts facts = with_due({.memory_save = true});
  EXPECT_EQ(decide(facts), (Actions{.save = Save::kInMemory}));
  // An earlier save on disk is still being written.
  facts.save_postponed = true;
  EXPECT_EQ(decide(facts), (Actions{.save = Save::kInMemory, .save_postponed = true}));
  facts = with_due({.save = true, .memory_save = true});
  EXPECT_EQ(decide(facts), (Actions{.save = Save::kOnDisk}));
  for (bool Facts::*hindrance : {&Facts::skipping, &Facts::comparing}) {
    facts = with_due({.memory_save = true});
    facts.*hindrance = true;
    EXPECT_EQ(decide(facts), Actions{});
  }
  facts = with_due({.memory_save = true});
  facts.save_allowed = false;
  EXPECT_EQ(decide(facts), Actions{});
}

TEST(DecideTest, AComparisonFollowsTheSaveOfTheSameStep) {
  EXPECT_EQ(decide(with_due({.save = true, .comparison = true})),
            (Actions{.save = Save::kOnDisk, .next = Next::kCompare}));
  EXPECT_EQ(decide(with_due({.comparison = true, .resume_fp8 = true})).next, Next::kCompare);
  EXPECT_EQ(decide(with_due({.resume_fp8 = true})), (Actions{.next = Next::kResumeFp8}));
}

TEST(DecideTest, AValidationIsNotWorthItsTimeWhenTheStateIsGivenUp) {
  Facts facts = with_due({.validation = true});
  EXPECT_TRUE(validates(facts));
  EXPECT_FALSE(validates({}));
  facts.requests.roll_back_to = RollBack::kCheckpoint;
  EXPECT_TRUE(validates(facts));
  facts.has_checkpoint = true;
  EXPECT_FALSE(validates(facts));
  facts.requests = {.stop = true};
  EXPECT_FALSE(validates(facts));
  facts.requests = {.roll_back_to = RollBack::kComparison};
  EXPECT_FALSE(validates(facts));
  facts.requests = {};
  facts.over_limit = true;
  EXPECT_FALSE(validates(facts));
}

// Every combination of due work: the step was taken before the checkpoint was saved, so only what follows a save is
// left.
TEST(DecideTest, WhatFollowsTheSaveIsDueAfterLoadingToo) {
  for (int bits = 0; bits < 1 << 6; ++bits) {
    const Due due{.last = (bits & 1) != 0,
                  .save = (bits & 2) != 0,
                  .memory_save = (bits & 4) != 0,
                  .validation = (bits & 8) != 0,
                  .comparison = (bits & 16) != 0,
                  .resume_fp8 = (bits & 32) != 0};
    const Facts loaded = with_due(due_after_loading(due, 20));
    const Actions actions = decide(loaded);
    EXPECT_EQ(actions.next, decide(with_due({.comparison = due.comparison, .resume_fp8 = due.resume_fp8})).next);
    EXPECT_EQ(actions.save, Save::kNone) << "the checkpoint is there";
    EXPECT_FALSE(validates(loaded)) << "the validation precedes the save";
    EXPECT_EQ(decide(with_due(due_after_loading(due, 0))), Actions{}) << "nothing is due at step 0";
  }
  EXPECT_EQ(decide(with_due(due_after_loading({.save = true, .comparison = true}, 20))),
            Actions{.next = Next::kCompare});
}

TEST(DecideTest, AStopNamesWhatItCutsShort) {
  Facts facts{.due = {.validation = true}, .requests = {.stop = true}};
  EXPECT_EQ(cut_short(facts), "the validation, so this step has no validation_loss");
  facts.comparing = true;
  EXPECT_EQ(cut_short(facts),
            "the validation, so this step has no validation_loss, and the comparison of FP8 with bfloat16");
  facts.validated = true;
  EXPECT_EQ(cut_short(facts), "the comparison of FP8 with bfloat16");
  facts.requests.stop = false;
  EXPECT_EQ(cut_short(facts), "") << "the run continues";
  facts.requests = {.stop = true, .roll_back_to = RollBack::kCheckpoint};
  facts.has_checkpoint = true;
  EXPECT_EQ(cut_short(facts), "") << "the state is given up";
  EXPECT_EQ(cut_short({.requests = {.stop = true}}), "");
}

TEST(RequestsTest, ArePackedIntoBitsThatCanBeCombined) {
  for (const bool stop : {false, true}) {
    for (const bool save : {false, true}) {
      for (const RollBack target : {RollBack::kNone, RollBack::kCheckpoint, RollBack::kComparison}) {
        const int64_t spike = target == RollBack::kNone ? 0 : int64_t{1} << 40;
        const Requests requests{.stop = stop, .save = save, .roll_back_to = target, .spike = spike};
        const Requests same = Requests::unpack(requests.pack() | Requests{}.pack());
        EXPECT_EQ(same.stop, stop);
        EXPECT_EQ(same.save, save);
        EXPECT_EQ(same.roll_back_to, target);
        EXPECT_EQ(same.spike, spike);
        EXPECT_TRUE(Requests::unpack(requests.pack() | Requests{.stop = true}.pack()).stop);
      }
    }
  }
}

TEST(RequestsTest, TheFirstSpikeAndTheComparisonTakePrecedence) {
  Requests requests;
  requests.roll_back(RollBack::kCheckpoint, 7);
  requests.roll_back(RollBack::kCheckpoint, 9);
  EXPECT_EQ(requests.spike, 7);
  requests.roll_back(RollBack::kComparison, 0);
  requests.roll_back(RollBack::kCheckpoint, 8);
  EXPECT_EQ(requests.roll_back_to, RollBack::kComparison);
}

// A simulated run: it tracks whether the state is sound and what the newest checkpoint contains.
class DrawnRun {
 public:
  explicit DrawnRun(uint64_t seed) : random_(seed) {}

  void run(int64_t steps) {
    for (step_ = 1; step_ <= steps && !ended_; ++step_) take_step(step_ == steps);
    EXPECT_TRUE(ended_);
  }

 private:
  bool draw(int one_in) { return random_() % static_cast<uint64_t>(one_in) == 0; }

  void take_step(bool last) {
    skipped_in_a_row_ = draw(6) ? skipped_in_a_row_ + 1 : 0;
    save_waits_ = save_waits_ && !draw(3);
    const bool spike = skipped_in_a_row_ == 0 && draw(8);
    const bool comparison_ends = comparing_ && draw(3);
    const bool gap = comparison_ends && draw(2);
    if (comparison_ends) comparing_ = false;
    Facts facts;
    facts.due = {.last = last,
                 .save = draw(4) || (owes_save_ && !save_waits_),
                 .memory_save = draw(4),
                 .validation = draw(4),
                 .comparison = !last && !comparing_ && draw(5)};
    facts.requests.stop = draw(40);
    facts.requests.save = draw(10);
    if (spike) facts.requests.roll_back(RollBack::kCheckpoint, step_);
    if (gap) facts.requests.roll_back(RollBack::kComparison, 0);
    facts.skipping = skipped_in_a_row_ > 0;
    facts.over_limit = skipped_in_a_row_ > 3;
    facts.comparing = comparing_;
    facts.has_checkpoint = facts.requests.roll_back_to != RollBack::kNone && has_checkpoint_;
    facts.save_waits = save_waits_;
    facts.save_allowed = !draw(20);
    facts.save_postponed = owes_save_;
    check(facts, decide(facts));
  }

  void check(const Facts& facts, const Actions& actions) {
    EXPECT_EQ(actions, decide(facts));  // Equal facts lead to equal actions on every rank.
    const bool to_disk = actions.save == Save::kOnDisk || actions.save == Save::kFinal;
    const bool ends = actions.next == Next::kStop || actions.next == Next::kDone || actions.next == Next::kGiveUp;
    if (facts.requests.roll_back_to != RollBack::kNone && facts.has_checkpoint) {
      EXPECT_FALSE(to_disk || actions.save == Save::kInMemory) << "a spoiled state is saved";
    }
    if (actions.save == Save::kOnDisk || actions.save == Save::kInMemory) {
      EXPECT_FALSE(facts.skipping || facts.comparing) << "an unsettled state is saved";
      EXPECT_TRUE(facts.save_allowed);
    }
    if (actions.save == Save::kOnDisk) {
      EXPECT_FALSE(facts.save_waits) << "the run waits for the earlier save";
    }
    if (facts.requests.stop) {
      EXPECT_TRUE(ends) << "a stop is not obeyed";
    }
    if (facts.due.last) {
      EXPECT_TRUE(ends || actions.next == Next::kToCheckpoint || actions.next == Next::kToComparison);
    }
    if (ends && facts.save_allowed && !facts.over_limit) {
      EXPECT_TRUE(actions.save == Save::kFinal || has_checkpoint_) << "a run ends without any state to resume from";
    }
    const bool goes_back = actions.next == Next::kToCheckpoint || actions.next == Next::kToComparison;
    const bool wanted = facts.due.save || facts.requests.save || facts.save_postponed;
    if (wanted && !ends && !goes_back && facts.save_allowed) {
      EXPECT_TRUE(to_disk != actions.save_postponed) << "a wanted save is either made or owed";
    }
    if (goes_back) {
      EXPECT_FALSE(actions.save_postponed);
    }
    perform(facts, actions, to_disk, ends);
  }

  void perform(const Facts& facts, const Actions& actions, bool to_disk, bool ends) {
    owes_save_ = actions.save_postponed;
    if (to_disk) has_checkpoint_ = save_waits_ = true;
    if (actions.next == Next::kCompare) comparing_ = true;
    if (actions.next == Next::kToCheckpoint || actions.next == Next::kToComparison) {
      comparing_ = false;
      skipped_in_a_row_ = 0;
      if (facts.due.last) --step_;  // The step is taken again.
    }
    ended_ = ends;
  }

  std::mt19937_64 random_;
  int64_t step_ = 0;
  int skipped_in_a_row_ = 0;
  bool owes_save_ = false;
  bool save_waits_ = false;
  bool comparing_ = false;
  bool has_checkpoint_ = false;
  bool ended_ = false;
};

TEST(DecideTest, KeepsItsPromisesOverDrawnSequencesOfEvents) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    DrawnRun(seed).run(50);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace octavo

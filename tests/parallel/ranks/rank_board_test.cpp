// Tests which processes a rank board considers gone.
#include "parallel/ranks/rank_board.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "core/error.h"

namespace octavo {
namespace {

class RankBoardTest : public ::testing::Test {
 protected:
  RankBoardTest() : name_(fmt::format("/octavo-board-test-{}", getpid())), board_(RankBoard::create(name_, 2)) {
    board_.sign_in(0, 4);
  }
  ~RankBoardTest() override { RankBoard::unlink(name_); }

  // Runs `work` in another process, with rank 5, and waits for its end.
  void run_other(const std::function<void(RankBoard&)>& work) {
    const pid_t child = fork();
    if (child == 0) {
      RankBoard board = RankBoard::open(name_, 2);
      board.sign_in(1, 5);
      work(board);
      _exit(0);
    }
    ASSERT_GT(child, 0);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
  }

  std::string name_;
  RankBoard board_;
};

TEST_F(RankBoardTest, ARankThatHasNotSignedInIsNotGone) { EXPECT_EQ(board_.gone(), ""); }

// Without shared memory each rank has a board of its own.
TEST_F(RankBoardTest, ABoardThatIsNotSharedHasAnyRank) {
  RankBoard alone;
  alone.sign_in(3, 11);
  alone.set_entered(4);
  EXPECT_EQ(alone.missing(4), "");
  EXPECT_EQ(alone.missing(5), "rank 11 has not entered it");
}

TEST_F(RankBoardTest, ARankThatEndsWithoutAWordIsGone) {
  run_other([](RankBoard& board) { EXPECT_EQ(board.gone(), ""); });
  EXPECT_EQ(board_.gone(), "rank 5 is gone");
}

TEST_F(RankBoardTest, ARankThatSignsOutIsNotGone) {
  run_other([](RankBoard& board) { board.sign_out(); });
  EXPECT_EQ(board_.gone(), "");
}

TEST_F(RankBoardTest, RanksOfAStageAreComparedByTheirCollectives) {
  board_.set_entered(7);
  run_other([](RankBoard& board) { board.set_entered(6); });
  EXPECT_EQ(board_.missing(7), "rank 5 is gone");
  EXPECT_EQ(board_.missing(6), "");
}

// Ranks of other stages enter other collectives, so only the interval counts.
TEST_F(RankBoardTest, RanksOfOtherPipelineStagesAreComparedByTheInterval) {
  board_.set_stage(0);
  board_.set_entered(2 * RankBoard::kInterval);
  run_other([](RankBoard& board) {
    board.set_stage(1);
    board.set_entered(RankBoard::kInterval + 6);
    board.sign_out();
  });
  EXPECT_EQ(board_.missing(RankBoard::kInterval + 9), "");
  EXPECT_EQ(board_.missing(2 * RankBoard::kInterval), "rank 5 of pipeline stage 1 has not entered it");
}

}  // namespace
}  // namespace octavo

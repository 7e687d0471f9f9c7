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

TEST_F(RankBoardTest, ARankThatEndsWithoutAWordIsGone) {
  run_other([](RankBoard& board) { EXPECT_EQ(board.gone(), ""); });
  EXPECT_EQ(board_.gone(), "rank 5 is gone");
}

TEST_F(RankBoardTest, ARankThatSignsOutIsNotGone) {
  run_other([](RankBoard& board) { board.sign_out(); });
  EXPECT_EQ(board_.gone(), "");
}

}  // namespace
}  // namespace octavo

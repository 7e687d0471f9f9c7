// Tests that the time limit of a collective does not count the time during which a process is suspended.
#include "parallel/ranks/watchdog.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

namespace octavo {
namespace {

// Another process enters a collective with a time limit of 0.5 s and is suspended there for a second.
TEST(WatchdogTest, ASuspensionDoesNotCount) {
  constexpr std::chrono::milliseconds kPause{50};
  const pid_t child = fork();
  if (child == 0) {
    Watchdog watchdog(0, RankBoard(), [] {});
    watchdog.set_timeout(0.5);
    const Watchdog::Scope scope(watchdog, {.op = "all_reduce"});
    std::this_thread::sleep_for(kPause);
    raise(SIGSTOP);
    std::this_thread::sleep_for(kPause);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  std::this_thread::sleep_for(20 * kPause);
  kill(child, SIGCONT);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace octavo

#include "app/process/startup_timer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace octavo {
namespace {

TEST(StartupTimer, DividesTheTimeSinceTheLaunch) {
  double time = 0.25;
  StartupTimer timer([&] { return time; });
  EXPECT_EQ(timer.report(), "0.2 s: program 0.2");
  time = 1;
  timer.mark("MPI");
  time = 3;
  timer.mark("memory");
  time = 3.5;
  timer.mark("reading");
  time = 5.5;
  timer.mark("memory");
  time = 99;  // The report ends with the last mark.
  EXPECT_EQ(timer.report(), "5.5 s: program 0.2, MPI 0.8, memory 4.0, reading 0.5");
}

TEST(StartupTimer, CountsFromTheStartOfTheProcess) {
  const double before = seconds_since_launch();
  EXPECT_GE(before, 0);
  EXPECT_LT(before, 600) << "this test program has not run for so long";
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_NEAR(seconds_since_launch() - before, 0.02, 1);
  EXPECT_GE(seconds_since_launch() - before, 0.02);
}

}  // namespace
}  // namespace octavo

#include "app/records/goodput.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/data/test_files.h"

namespace octavo {
namespace {

class GoodputTest : public testing::Test {
 protected:
  // Returns the goodput of a process that was launched at time `launch`. The clock of the process shows now_.
  Goodput process(double launch, bool continues = true, double steps_s = 0) {
    return {dir_ / "",
            continues,
            steps_s,
            {.since_launch = [=, this] { return now_ - launch; }, .wall = [this] { return now_; }}};
  }
  // Leaves the file of a process that was launched at 1000, had 80 s of steps and wrote at 1100.
  void leave_process(bool ended) {
    Goodput goodput = process(1000);
    now_ = 1100;
    goodput.add(Goodput::kSteps, 80);
    goodput.writing(ended)();
  }

  TempDir dir_;
  double now_ = 1000;
};

TEST_F(GoodputTest, SharesOfTheWallTime) {
  Goodput goodput = process(1000);
  now_ = 1100;
  goodput.add(Goodput::kStart, 5);
  goodput.add(Goodput::kSteps, 60);
  goodput.add(Goodput::kSteps, 20);
  goodput.add(Goodput::kSaving, 10);
  EXPECT_DOUBLE_EQ(goodput.share(), 0.8);
  EXPECT_EQ(goodput.report(), "goodput 80.0% of 1m: start 5.0%, saving 10.0%, other 5.0%");
}

// The process has 80 s of steps, of which 30 s come after the last checkpoint. The next process starts 20 s later.
TEST_F(GoodputTest, AKilledProcessLosesWhatItDidSinceItsCheckpointAndTheTimeToTheNext) {
  leave_process(false);
  now_ = 1120;
  Goodput goodput = process(1120, true, 50);
  EXPECT_DOUBLE_EQ(goodput.wall_seconds(), 120);
  EXPECT_DOUBLE_EQ(goodput.steps_seconds(), 50);
  now_ = 1200;
  goodput.add(Goodput::kSteps, 75);
  EXPECT_EQ(goodput.report(), "goodput 62.5% of 3m: recovery 25.0%, other 12.5%; 1 restart");
}

TEST_F(GoodputTest, TheTimeAfterARunThatEndedIsNoLoss) {
  leave_process(true);
  now_ = 900'000;
  const Goodput goodput = process(now_, true, 80);
  EXPECT_DOUBLE_EQ(goodput.wall_seconds(), 100);
  EXPECT_DOUBLE_EQ(goodput.share(), 0.8);
}

TEST_F(GoodputTest, ARunThatIsRolledBackLosesSteps) {
  Goodput goodput = process(1000);
  now_ = 1010;
  goodput.add(Goodput::kSteps, 10);
  goodput.roll_back(4);
  EXPECT_DOUBLE_EQ(goodput.share(), 0.4);
  EXPECT_EQ(goodput.report(), "goodput 40.0% of 10s: recovery 60.0%");
}

TEST_F(GoodputTest, IgnoresOtherAndDamagedFiles) {
  leave_process(true);
  EXPECT_DOUBLE_EQ(process(now_, false).wall_seconds(), 0);
  for (const char* text : {"", "[]", "{\"steps_s\": \"x\", \"wall_s\": -3}", "{\"updated\": 1e300}"}) {
    std::ofstream(dir_ / Goodput::kFileName) << text;
    EXPECT_GE(process(now_).wall_seconds(), 0) << text;
  }
  // Without a valid time of the last update, the run must not count the time since 1970 as downtime.
  for (const char* text : {"{}", "{\"wall_s\": 5}", "{\"updated\": 5}"}) {
    std::ofstream(dir_ / Goodput::kFileName) << text;
    EXPECT_DOUBLE_EQ(process(now_).wall_seconds(), 0) << text;
  }
  std::ofstream(dir_ / Goodput::kFileName) << R"({"wall_s": 5, "updated": 5, "restarts": 1e300, "ended": true})";
  EXPECT_GT(process(now_).to_json().at("restarts").get<int64_t>(), 0);
}

}  // namespace
}  // namespace octavo

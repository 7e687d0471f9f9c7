#include "core/thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "core/error.h"
#include "tests/no_threads.h"

namespace octavo {
namespace {

TEST(Thread, RefusalIsASentenceThatNamesTheWork) {
  const NoThreads none;
  try {
    start_thread("reading data", [] {}).join();
    FAIL() << "a thread was started";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "no thread can be started for reading data: Resource temporarily unavailable; raise the limit on "
              "processes (ulimit -u, or the container's)");
  }
  EXPECT_FALSE(start_thread_if_possible([] {}).joinable());
}

TEST(Thread, HelpersAreThoseThatTheSystemGives) {
  std::atomic<int> runs{0};
  {
    HelperThreads helpers;
    helpers.start([&] { ++runs; });
    const NoThreads none;
    helpers.start([&] { ++runs; });
  }
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace octavo

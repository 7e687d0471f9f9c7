#include "core/thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "core/error.h"
#include "tests/data/test_files.h"
#include "tests/no_threads.h"

namespace octavo {
namespace {

TEST(Thread, RefusalIsASentenceThatNamesTheWork) {
  const NoThreads none;
  expect_mentions(message_of<Error>([] { start_thread("reading data", [] {}).join(); }),
                  {"no thread can be started for reading data", "Resource temporarily unavailable", "ulimit -u"});
  EXPECT_FALSE(start_thread_if_possible([] {}).joinable());
}

TEST(Thread, HelpersAreThoseThatTheSystemGives) {
  std::atomic<int> runs{0};
  std::thread helper = start_thread_if_possible([&] { ++runs; });
  {
    const NoThreads none;
    EXPECT_FALSE(start_thread_if_possible([&] { ++runs; }).joinable());
  }
  helper.join();
  EXPECT_EQ(runs, 1);
}

TEST(Thread, ForEachInParallelVisitsEveryItemOnce) {
  for (const size_t threads : {1, 3, 8}) {
    std::vector<std::atomic<int>> visits(100), of_thread(threads);
    for_each_in_parallel(visits.size(), threads, [&](size_t item, size_t thread) {
      ++visits[item];
      ++of_thread.at(thread);
    });
    for (const auto& count : visits) EXPECT_EQ(count, 1);
  }
  for_each_in_parallel(0, 3, [](size_t, size_t) { FAIL() << "there is no item"; });
  const NoThreads none;
  int64_t sum = 0;
  for_each_in_parallel(10, 3, [&](size_t item, size_t) { sum += static_cast<int64_t>(item); });
  EXPECT_EQ(sum, 45);
}

TEST(Thread, ForEachInParallelThrowsWhatTheLowestItemThrew) {
  for (int repetition = 0; repetition < 50; ++repetition) {
    std::atomic<int> visits{0};
    const auto visit_all = [&] {
      for_each_in_parallel(100000, 4, [&](size_t item, size_t) {
        ++visits;
        CHECK(item < 30, "item {}", item);
      });
    };
    EXPECT_EQ(message_of<Error>(visit_all), "item 30");
    EXPECT_LT(visits, 100) << "the other items are not visited";
  }
}

}  // namespace
}  // namespace octavo

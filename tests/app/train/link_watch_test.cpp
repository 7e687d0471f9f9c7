#include "app/train/link_watch.h"

#include <gtest/gtest.h>

namespace octavo {
namespace {

TEST(LinkWatchTest, TheWarningHasTheLinkTheCollectiveAndWhatItCosts) {
  const Machines machines(std::vector<int>{0, 0, 2, 2, 4, 4});
  const std::vector<std::string> hosts = {"a", "b", "c"};
  const SlowLinks links{.machine = 1, .sends = true, .bytes_per_s = 5e6, .others = 25e6};
  TransferTime time{.kind = "all_gather of weights (shard axis)", .ms = 800, .step_ms = 1290};
  EXPECT_EQ(describe(links, time, machines, hosts),
            "slow link: b (ranks 2 to 3) sends 5.0 MB/s, the other links carry 25.0 MB/s; ranks wait for it in "
            "all_gather of weights (shard axis): 800 ms of a step of 1290 ms, 160 ms at the rate of the others");
  time.before_ms = 95;
  EXPECT_EQ(describe(links, time, machines, hosts),
            "slow link: b (ranks 2 to 3) sends 5.0 MB/s, the other links carry 25.0 MB/s; ranks wait for it in "
            "all_gather of weights (shard axis): 800 ms of a step of 1290 ms, beside 95 ms before");
}

}  // namespace
}  // namespace octavo

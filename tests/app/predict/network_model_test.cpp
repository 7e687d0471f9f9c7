// Tests of limiting cases of the network model. published_test.cpp compares the model with published measurements.
#include "app/predict/network_model.h"

#include <gtest/gtest.h>

#include "app/predict/machine_rates.h"
#include "core/error.h"

namespace octavo {
namespace {

constexpr CollectiveKind kAll[] = {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
                                   CollectiveKind::kAllReduce, CollectiveKind::kAllToAll};

class NetworkModel : public testing::Test {
 protected:
  double seconds(CollectiveKind op, int64_t ranks, int64_t stride, double bytes) const {
    return collective_seconds(machine_, network_, spread(ranks, stride, /*ranks_per_node=*/8), op, bytes);
  }
  // Returns the bus bandwidth of an all_gather or reduce_scatter in GB/s.
  double bus(CollectiveKind op, int64_t ranks, int64_t stride, double bytes) const {
    return bytes * static_cast<double>(ranks - 1) / static_cast<double>(ranks) / seconds(op, ranks, stride, bytes) /
           1e9;
  }

  MachineRates machine_ = find_machine("h100");
  NetworkRates network_;
};

TEST_F(NetworkModel, OneRankCostsNothing) {
  for (const CollectiveKind op : kAll) EXPECT_EQ(seconds(op, 1, 1, 1e9), 0);
}

TEST_F(NetworkModel, WithinANodeAsMeasured) {
  const CollectiveRates& rates = machine_.collectives.value();
  for (const int64_t ranks : {2, 4, 8}) {
    const double share = static_cast<double>(ranks - 1) / static_cast<double>(ranks);
    for (const CollectiveKind op : kAll) {
      const double rounds = op == CollectiveKind::kAllReduce ? 2 : 1;
      EXPECT_DOUBLE_EQ(seconds(op, ranks, 1, 1e9), rates.latency_s + rounds * 1e9 * share / rates.bus_bytes_per_s);
    }
  }
  for (const CollectiveRate& measured : rates.sizes) {
    const double predicted = seconds(collective_named(measured.op), 8, 1, static_cast<double>(measured.bytes));
    EXPECT_NEAR(predicted / measured.seconds, 1, 0.15) << measured.op << " of " << measured.bytes;
  }
}

TEST_F(NetworkModel, MoreRanksAndBytesNeverTakeLess) {
  for (const CollectiveKind op : kAll) {
    for (const int64_t stride : {1, 2, 4, 8, 64}) {
      for (double bytes = 8; bytes < 1e11; bytes *= 4) {
        for (int64_t ranks = 1; ranks < 16384 / stride; ranks *= 2) {
          const double here = seconds(op, ranks, stride, bytes);
          EXPECT_LE(here, seconds(op, 2 * ranks, stride, bytes)) << ranks << " ranks, " << bytes << " bytes";
          EXPECT_LE(here, seconds(op, ranks, stride, 2 * bytes)) << ranks << " ranks, " << bytes << " bytes";
        }
      }
    }
  }
}

TEST_F(NetworkModel, SmallMessagesAreBoundByTheNumberOfRanks) {
  // The time of a ring grows with the number of ranks, that of a tree with its logarithm.
  const double ring_64 = seconds(CollectiveKind::kAllGather, 64, 1, 1024);
  EXPECT_GT(seconds(CollectiveKind::kAllGather, 1024, 1, 1024), 10 * ring_64);
  const double tree_64 = seconds(CollectiveKind::kAllReduce, 64, 1, 1024);
  const double tree_1024 = seconds(CollectiveKind::kAllReduce, 1024, 1, 1024);
  EXPECT_GT(tree_1024, tree_64);
  EXPECT_LT(tree_1024, 2 * tree_64);
  // The tree has four more levels, and each adds one hop of NCCL's LL protocol in both directions.
  EXPECT_NEAR(tree_1024 - tree_64, 2 * 4 * 5e-6, 1e-9);
}

TEST_F(NetworkModel, ProtocolsBySize) {
  // A few bytes use the short hops of NCCL's LL protocol, many bytes the bandwidth of its Simple protocol. Linear
  // interpolation between the two would be too slow for medium sizes.
  const double small = seconds(CollectiveKind::kAllGather, 128, 1, 1024);
  const double large = seconds(CollectiveKind::kAllGather, 128, 1, 4e9);
  const double hops = 15 * (14e-6 + 7 * 3.4e-6);
  EXPECT_LT(small, machine_.collectives->latency_s + 0.3 * hops);
  EXPECT_NEAR(large, machine_.collectives->latency_s + hops + 4e9 * 127 / 128 / 3.2e11, 1e-6);
}

TEST_F(NetworkModel, AggregatedTreesWithOneRankANode) {
  // Each of the 512 ranks adds 2.8 us, and a tree has a logarithmic number of hops, where a ring would have 511.
  const double rail = seconds(CollectiveKind::kAllGather, 512, 8, 512 * 1024);
  EXPECT_LT(rail, 512 * 2.8e-6 + 9 * 14e-6 / 3.5 + 1e-4);
  EXPECT_GT(seconds(CollectiveKind::kAllReduce, 512, 8, 512 * 1024), 0);
}

TEST_F(NetworkModel, CardsOfTheGroupBoundIt) {
  constexpr double kBytes = 64e9;
  EXPECT_NEAR(bus(CollectiveKind::kAllGather, 128, 1, kBytes), 320, 10);    // NVLink is the limit.
  EXPECT_NEAR(bus(CollectiveKind::kAllGather, 128, 4, kBytes), 2 * 47, 3);  // Two network cards are the limit.
  EXPECT_NEAR(bus(CollectiveKind::kReduceScatter, 128, 8, kBytes), 47, 2);  // One network card is the limit.
  EXPECT_EQ(seconds(CollectiveKind::kAllGather, 128, 8, kBytes), seconds(CollectiveKind::kAllGather, 128, 64, kBytes));
}

TEST_F(NetworkModel, AllToAllGoesThroughSingleCards) {
  EXPECT_EQ(seconds(CollectiveKind::kAllToAll, 8, 1, 1e9), seconds(CollectiveKind::kReduceScatter, 8, 1, 1e9));
  EXPECT_GT(seconds(CollectiveKind::kAllToAll, 64, 1, 1e9), 5 * seconds(CollectiveKind::kReduceScatter, 64, 1, 1e9));
  // With one rank per node, both collectives have a single network card per rank.
  EXPECT_NEAR(seconds(CollectiveKind::kAllToAll, 64, 8, 4e9) / seconds(CollectiveKind::kReduceScatter, 64, 8, 4e9), 1,
              0.1);
}

TEST_F(NetworkModel, SendsToTheNextRank) {
  constexpr double kBytes = 1e9;
  const double within = send_seconds(machine_, {}, {.ranks = 2, .per_node = 2}, kBytes);
  const double between = send_seconds(machine_, {}, {.ranks = 2, .per_node = 1}, kBytes);
  EXPECT_NEAR(between, kBytes / (0.94 * 50e9), 1e-4);
  EXPECT_LT(within, between);
  EXPECT_NEAR(send_seconds(machine_, {.gbps = 100}, {.ranks = 2, .per_node = 1}, kBytes), 4 * between, 1e-3);
}

TEST_F(NetworkModel, OpsByName) {
  EXPECT_EQ(collective_named("all_to_all"), CollectiveKind::kAllToAll);
  EXPECT_THROW(collective_named("all_gather_v"), Error);
}

TEST_F(NetworkModel, NeedsMeasuredCollectives) {
  machine_.collectives.reset();
  EXPECT_THROW(seconds(CollectiveKind::kAllGather, 8, 1, 1e9), InputError);
  EXPECT_EQ(seconds(CollectiveKind::kAllGather, 1, 1, 1e9), 0);
}

}  // namespace
}  // namespace octavo

#include "app/observers/corruption_verdict.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace octavo {
namespace {

// Ranks that hold the same parts, with equal hashes.
class CorruptionVerdictTest : public testing::Test {
 protected:
  void make(int count, const std::vector<HashedPart>& parts = {{"weights of norms", ""}, {"exp_avg of norms", ""}}) {
    ranks_.clear();
    hashes_.clear();
    for (int r = 0; r < count; ++r) {
      const uint64_t own = 1000 + 10 * static_cast<uint64_t>(r);
      ranks_.push_back({.place = fmt::format("host{}", r), .parts = parts});
      hashes_.push_back(
          {.first = {own, own + 1}, .second = {own, own + 1}, .parts = std::vector<uint64_t>(parts.size(), 17)});
    }
  }

  CorruptionVerdict verdict() const { return judge(ranks_, hashes_, results_); }
  // Expects these ranks, and a message that names each of them, its host and what differs.
  void expect(const std::vector<int>& ranks, bool replicas_differ, std::vector<std::string> parts) const {
    const CorruptionVerdict found = verdict();
    EXPECT_EQ(found.ranks, ranks) << found.message;
    EXPECT_EQ(found.replicas_differ, replicas_differ);
    EXPECT_EQ(found.message.empty(), ranks.empty());
    for (const int rank : ranks) parts.push_back(fmt::format("rank {0} on host{0}", rank));
    for (const std::string& part : parts) EXPECT_NE(found.message.find(part), std::string::npos) << found.message;
  }

  std::vector<CheckedRank> ranks_;
  std::vector<RankHashes> hashes_;
  std::vector<std::string> results_ = {"losses", "gradients of norms"};
};

TEST_F(CorruptionVerdictTest, NothingDiffers) {
  for (const int count : {1, 2, 5}) {
    make(count);
    expect({}, false, {});
  }
}

TEST_F(CorruptionVerdictTest, TheMajorityNamesTheRank) {
  make(3);
  hashes_[1].parts[0] = 18;
  expect({1}, true, {"replicas differ in weights of norms"});
  hashes_[1].parts[1] = 18;
  expect({1}, true, {"replicas differ in weights of norms and 1 other"});
  hashes_[2].parts[1] = 19;  // Three replicas now have three different hashes, so there is no majority.
  EXPECT_EQ(verdict().ranks, (std::vector<int>{1}));
  make(5);
  hashes_[4].parts[0] = 18;
  hashes_[0].parts[1] = 18;
  EXPECT_EQ(verdict().ranks, (std::vector<int>{0, 4}));
}

TEST_F(CorruptionVerdictTest, EitherOfTwoReplicasMayBeWrong) {
  make(2);
  hashes_[1].parts[0] = 18;
  expect({0, 1}, true, {"replicas differ in weights of norms"});
}

TEST_F(CorruptionVerdictTest, TheMicroBatchDecidesBetweenTwoReplicas) {
  make(2);
  hashes_[1].parts[0] = 18;
  hashes_[1].second[1] = 3;
  expect({1}, true, {"computed twice gives different gradients of norms", "replicas differ in weights of norms"});
}

TEST_F(CorruptionVerdictTest, ARankThatDiffersFromItselfIsNamed) {
  make(1);
  hashes_[0].second[0] = 3;
  expect({0}, false, {"computed twice gives different losses"});
}

TEST_F(CorruptionVerdictTest, EveryResultThatDiffersIsCountedOnce) {
  make(3);
  hashes_[2].second[0] = 3;
  hashes_[2].second[1] = 3;
  hashes_[1].second[1] = 3;
  expect({1, 2}, false, {"computed twice gives different losses and 1 other"});
}

TEST_F(CorruptionVerdictTest, ShardsOfAReplicaAddUp) {
  make(4, {});
  const auto hold = [&](size_t rank, const std::string& copy, uint64_t hash) {
    ranks_[rank].parts.push_back({"weights of head 1", copy});
    hashes_[rank].parts.push_back(hash);
  };
  hold(0, "a", 5), hold(1, "a", 7), hold(2, "b", 12), hold(3, "c", 4), hold(3, "c", 8);
  expect({}, false, {});
  hashes_[1].parts[0] = 8;
  expect({0, 1}, true, {"replicas differ in weights of head 1"});
  // The hashes of another part show which rank is wrong.
  ranks_[1].parts.push_back({"weights of block 0", ""}), hashes_[1].parts.push_back(1);
  ranks_[2].parts.push_back({"weights of block 0", ""}), hashes_[2].parts.push_back(2);
  ranks_[3].parts.push_back({"weights of block 0", ""}), hashes_[3].parts.push_back(2);
  EXPECT_EQ(verdict().ranks, (std::vector<int>{1}));
}

TEST_F(CorruptionVerdictTest, NamesAFewOfMany) {
  make(8);
  for (size_t r = 0; r < 8; ++r) hashes_[r].parts[0] = r;
  const std::string message = verdict().message;
  EXPECT_NE(message.find("rank 3 on host3 or 4 others: replicas differ"), std::string::npos) << message;
}

}  // namespace
}  // namespace octavo

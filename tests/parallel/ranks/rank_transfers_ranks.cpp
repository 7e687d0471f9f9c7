// Tests of byte transfers between ranks that run concurrently with the collectives of the main thread.
#include <future>
#include <random>

#include "core/error.h"
#include "parallel/ranks/rank_transfers.h"
#include "tests/parallel/ranks_fixture.h"

namespace octavo::rank_transfers_ranks {
namespace {

class RankTransfersTest : public RanksTest {
 protected:
  // Returns the bytes that `rank` sends, which every rank can compute. Odd ranks send more than one block.
  static std::vector<std::byte> content_of(int rank) {
    std::mt19937 generator(static_cast<unsigned>(rank));
    std::vector<std::byte> content((size_t{1} << 24) * static_cast<size_t>(rank % 2) + 4321 +
                                   static_cast<size_t>(rank));
    for (std::byte& byte : content) byte = static_cast<std::byte>(generator());
    return content;
  }

  int next() const { return (group_.rank() + 1) % group_.size(); }
  int previous() const { return (group_.rank() + group_.size() - 1) % group_.size(); }

  std::vector<std::byte> receive(int from) {
    std::vector<std::byte> received;
    transfers_.receive(
        from, [&](std::span<const std::byte> block) { received.insert(received.end(), block.begin(), block.end()); });
    return received;
  }

  RankTransfers transfers_{group_};
};

TEST_F(RankTransfersTest, RunInARingConcurrentlyWithCollectives) {
  const std::vector<std::byte> mine = content_of(group_.rank());
  // The parts end within a block, and one of them is empty.
  const std::span<const std::byte> whole(mine);
  const std::vector<std::span<const std::byte>> parts = {whole.first(0), whole.first(17), whole.subspan(17, 4000),
                                                         whole.subspan(4017)};
  std::future<void> sent = std::async(std::launch::async, [&] { transfers_.send(next(), parts); });
  std::future<std::vector<std::byte>> received = std::async(std::launch::async, [&] { return receive(previous()); });
  for (int i = 0; i < 50; ++i) EXPECT_EQ(group_.all_reduce_max(group_.rank() + i), group_.size() - 1 + i);
  EXPECT_EQ(group_.all_reduce_or(uint64_t{1} << group_.rank()), (uint64_t{1} << group_.size()) - 1);
  sent.get();
  EXPECT_TRUE(received.get() == content_of(previous()));
}

TEST_F(RankTransfersTest, AnEmptyTransferArrives) {
  std::future<void> sent = std::async(std::launch::async, [&] { transfers_.send(next(), {}); });
  EXPECT_TRUE(receive(previous()).empty());
  sent.get();
}

TEST_F(RankTransfersTest, TransfersWorkAfterAFailureOfEitherSide) {
  std::future<void> failed = std::async(std::launch::async, [&] { transfers_.send_failure(next()); });
  EXPECT_THROW(receive(previous()), Error);
  failed.get();
  const std::vector<std::byte> mine = content_of(1);
  const std::span<const std::byte> whole(mine);
  std::future<void> sent = std::async(std::launch::async, [&] { transfers_.send(next(), std::span(&whole, 1)); });
  EXPECT_THROW(transfers_.receive(previous(), [](std::span<const std::byte>) { throw Error("no room"); }), Error);
  sent.get();
  // The failed receive does not disturb the next transfer.
  sent = std::async(std::launch::async, [&] { transfers_.send(next(), std::span(&whole, 1)); });
  EXPECT_TRUE(receive(previous()) == mine);
  sent.get();
}

}  // namespace
}  // namespace octavo::rank_transfers_ranks

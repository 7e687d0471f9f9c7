// How fast links are, among ranks that are taken for machines, or for some of one.
#include <map>
#include <memory>
#include <utility>

#include "parallel/links.h"
#include "tests/parallel/ranks_fixture.h"

namespace octavo::links_ranks {
namespace {

class LinksRanks : public DeviceRanksTest {};

// Each link once, whatever the machines, and the same on every rank.
TEST_P(LinksRanks, EveryLinkIsMeasuredOnce) {
  const std::unique_ptr<Communicator> world = make_communicator(group_, stream_);
  DeviceArray scratch(stream_, DType::kUInt8, 100'000);
  for (const int ranks : {1, 2}) {
    std::vector<int> by_rank;
    for (int rank = 0; rank < size_; ++rank) by_rank.push_back(rank / ranks);
    const Machines machines(by_rank);
    if (machines.count() == 1) continue;
    const std::vector<Link> links = measure_links(*world, group_, machines, scratch.tensor(), stream_);
    std::string text;
    std::map<std::pair<int, int>, int> times;
    for (const Link& link : links) {
      EXPECT_GT(link.bytes_per_s, 1e5);
      EXPECT_NE(machines.of(link.from), machines.of(link.to));
      ++times[{link.from, link.to}];
      text += fmt::format("{} {} {}\n", link.from, link.to, link.bytes_per_s);
    }
    for (const auto& [link, count] : times) EXPECT_EQ(count, 1) << link.first << " " << link.second;
    const int places = size_ % ranks == 0 ? ranks : 1;  // where the last machine has fewer
    EXPECT_EQ(std::ssize(links), places * machines.count() * (machines.count() > 2 ? 2 : 1));
    for (const std::string& other : group_.all_gather(text)) EXPECT_EQ(other, text);
  }
}

INSTANTIATE_ON_DEVICES(LinksRanks);

}  // namespace
}  // namespace octavo::links_ranks

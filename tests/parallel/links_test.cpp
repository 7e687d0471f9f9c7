#include "parallel/links.h"

#include <gtest/gtest.h>

#include <functional>

namespace octavo {
namespace {

constexpr double kRate = 25e6;

// Of `count` machines with `places` ranks each: the links that are measured, each at its rate.
std::vector<Link> links_of(const Machines& machines, const std::function<double(int, int)>& rate) {
  std::vector<Link> links;
  for (const int direction : {1, -1}) {
    if (direction == -1 && machines.count() == 2) continue;
    for (int machine = 0; machine < machines.count(); ++machine) {
      const int next = (machine + direction + machines.count()) % machines.count();
      for (const int rank : machines.ranks(machine)) {
        const int to = machines.counterpart(rank, next);
        links.push_back({rank, to, rate(rank, to)});
      }
    }
  }
  return links;
}

Machines machines_of(int count, int places) {
  std::vector<int> by_rank;
  for (int rank = 0; rank < count * places; ++rank) by_rank.push_back(rank / places);
  return Machines(by_rank);
}

std::vector<std::string> described(const Machines& machines, const std::function<double(int, int)>& rate) {
  std::vector<std::string> hosts;
  for (int machine = 0; machine < machines.count(); ++machine) hosts.push_back("host" + std::to_string(machine));
  const std::vector<Link> links = links_of(machines, rate);
  std::vector<std::string> texts;
  for (const SlowLinks& slow : find_slow_links(links, machines)) texts.push_back(describe(slow, machines, hosts));
  return texts;
}

using Texts = std::vector<std::string>;

TEST(LinksTest, EvenLinksAreNotSlow) {
  for (const int count : {2, 3, 4, 9}) {
    const Machines machines = machines_of(count, 2);
    // From 60% to all of the rate.
    const auto rate = [](int from, int to) { return kRate * (0.6 + 0.05 * ((from * 5 + to * 3) % 9)); };
    EXPECT_EQ(described(machines, rate), Texts()) << count;
  }
}

TEST(LinksTest, TheMachineThatSendsSlowlyIsNamed) {
  for (const int count : {3, 4, 5, 16}) {
    const Machines machines = machines_of(count, 2);
    const auto rate = [&](int from, int) { return machines.of(from) == 1 ? kRate / 5 : kRate; };
    EXPECT_EQ(described(machines, rate),
              Texts({"host1 (ranks 2 to 3) sends 5.0 MB/s, the other links carry 25.0 MB/s"}));
  }
}

TEST(LinksTest, OrReceivesSlowlyOrBoth) {
  const Machines machines = machines_of(3, 1);
  const auto receives = [&](int, int to) { return to == 2 ? 1e9 : 50e9; };
  EXPECT_EQ(described(machines, receives),
            Texts({"host2 (rank 2) receives 1.0 GB/s, the other links carry 50.0 GB/s"}));
  const auto both = [&](int from, int to) { return from == 0 || to == 0 ? 1e9 : 50e9; };
  EXPECT_EQ(described(machines, both),
            Texts({"host0 (rank 0) sends and receives 1.0 GB/s, the other links carry 50.0 GB/s"}));
}

// Of two machines it is not known whose end is slow: the link is named.
TEST(LinksTest, BetweenTwoMachinesOneDirectionIsComparedWithTheOther) {
  const Machines machines = machines_of(2, 2);
  const auto rate = [&](int from, int) { return machines.of(from) == 1 ? kRate / 5 : kRate; };
  EXPECT_EQ(described(machines, rate),
            Texts({"host1 (ranks 2 to 3) sends 5.0 MB/s to host0, the other links carry 25.0 MB/s"}));
  EXPECT_EQ(described(machines, [](int, int) { return kRate / 5; }), Texts()) << "there is nothing to compare with";
}

TEST(LinksTest, OneNetworkCardOfSeveralIsItsRanks) {
  const Machines machines = machines_of(4, 8);
  const auto rate = [&](int from, int to) { return from == 13 || to == 13 ? 10e9 : 50e9; };
  EXPECT_EQ(described(machines, rate),
            Texts({"rank 13 on host1 sends and receives 10.0 GB/s, the other links carry 50.0 GB/s"}));
}

TEST(LinksTest, OneCableIsNamedByBothEnds) {
  const Machines machines = machines_of(4, 2);
  const auto rate = [&](int from, int to) {
    return machines.of(from) == 2 && machines.of(to) == 3 ? kRate / 4 : kRate;
  };
  EXPECT_EQ(described(machines, rate),
            Texts({"host2 (ranks 4 to 5) sends 6.2 MB/s to host3, the other links carry 25.0 MB/s"}));
}

TEST(LinksTest, SeveralMachinesAreNamedWhereTheyAreFew) {
  const Machines machines = machines_of(16, 1);
  const auto slow_of = [&](std::vector<int> slow) {
    return described(machines,
                     [=](int from, int) {
                       return std::find(slow.begin(), slow.end(), from) != slow.end() ? kRate / 5 : kRate;
                     })
        .size();
  };
  EXPECT_EQ(slow_of({3, 11}), 2);
  EXPECT_EQ(slow_of({0, 2, 4, 6, 8, 10, 12, 14}), 0) << "of so many none stands out";
}

}  // namespace
}  // namespace octavo

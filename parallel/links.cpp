#include "parallel/links.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "core/median.h"

namespace octavo {

namespace {

constexpr int64_t kMessageBytes = int64_t{8} << 20;
constexpr int64_t kMostBytes = int64_t{256} << 20;  // of a round
constexpr double kRoundSeconds = 0.05;              // that the slowest link takes, at least
constexpr int kRounds = 3;
constexpr double kGap = 2;  // between slow links and the others

// Of those that are measured at once no two share a machine.
int turn_of(int machine, int machines) { return machines % 2 == 1 && machine == machines - 1 ? 2 : machine % 2; }

int wrapped(int machine, int machines) { return (machine + machines) % machines; }

class LinkClock {
 public:
  LinkClock(Communicator& world, ProcessGroup& group, const Tensor& scratch, Stream& stream)
      : world_(world), group_(group), stream_(stream) {
    bytes_ = std::min(scratch.bytes() / 2 / kAlignment * kAlignment, kMessageBytes);
    char* begin = static_cast<char*>(scratch.raw());
    received_ = Tensor(begin, DType::kUInt8, {bytes_});
    sent_ = Tensor(begin + bytes_, DType::kUInt8, {bytes_});
  }

  // Bytes a second to rank `to`, on the rank that sends.
  double rate(int from, int to) {
    for (int64_t messages = 1;;) {
      double least = seconds(messages, from, to);
      for (int round = 1; round < kRounds; ++round) least = std::min(least, seconds(messages, from, to));
      const double slowest = slowest_of_all(least);
      if (slowest >= kRoundSeconds || messages * bytes_ >= kMostBytes) {
        return static_cast<double>(messages * bytes_) / least;
      }
      constexpr double kMostGrowth = 8;
      messages = static_cast<int64_t>(
          std::ceil(static_cast<double>(messages) * std::clamp(1.2 * kRoundSeconds / slowest, 2.0, kMostGrowth)));
    }
  }

 private:
  static constexpr int64_t kAlignment = 256;

  double seconds(int64_t messages, int from, int to) {
    group_.barrier();
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < messages; ++i) world_.send_receive(received_, from, sent_, to, stream_, "a probe of links");
    // By the sender's clock and until the receiver has all of it, a rank that comes late makes it longer, never
    // shorter.
    const int64_t answer = std::min(bytes_, kAlignment);
    world_.send_receive(received_.rows(0, answer), to, sent_.rows(0, answer), from, stream_,
                        "an answer to a probe of links");
    stream_.synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  double slowest_of_all(double seconds) {
    constexpr double kNanoseconds = 1e9;
    return static_cast<double>(group_.all_reduce_max(std::llround(seconds * kNanoseconds) + 1)) / kNanoseconds;
  }

  Communicator& world_;
  ProcessGroup& group_;
  Stream& stream_;
  int64_t bytes_ = 0;
  Tensor received_, sent_;
};

double median_rate(std::span<const Link> links) {
  std::vector<double> rates;
  rates.reserve(links.size());
  for (const Link& link : links) rates.push_back(link.bytes_per_s);
  return median(std::move(rates));
}

// The only value, if there is one.
template <typename Of>
std::optional<int> common(std::span<const Link> links, const Of& of) {
  const int first = of(links.front());
  const bool same = std::all_of(links.begin(), links.end(), [&](const Link& link) { return of(link) == first; });
  return same ? std::optional(first) : std::nullopt;
}

// All of `slow` begin or end at `machine`.
SlowLinks slow_links_of(int machine, std::span<const Link> slow, std::span<const Link> others,
                        const Machines& machines) {
  const auto begins = [&](const Link& link) { return machines.of(link.from) == machine; };
  SlowLinks found{
      .machine = machine,
      .rank = common(slow, [&](const Link& link) { return begins(link) ? link.from : link.to; }),
      .other = common(slow, [&](const Link& link) { return machines.of(begins(link) ? link.to : link.from); }),
      .sends = std::any_of(slow.begin(), slow.end(), begins),
      .receives = !std::all_of(slow.begin(), slow.end(), begins),
      .bytes_per_s = median_rate(slow),
      .others = median_rate(others)};
  const auto is_fast = [&](int rank) {
    return std::any_of(others.begin(), others.end(),
                       [&](const Link& link) { return link.from == rank || link.to == rank; });
  };
  const std::vector<int>& ranks = machines.ranks(machine);
  const bool is_one_of_several =
      std::any_of(ranks.begin(), ranks.end(), [&](int rank) { return rank != found.rank && is_fast(rank); });
  if (!is_one_of_several) found.rank.reset();
  return found;
}

std::string rate_text(double bytes_per_s) {
  constexpr double kGiga = 1e9;
  constexpr double kMega = 1e6;
  return bytes_per_s >= kGiga ? fmt::format("{:.1f} GB/s", bytes_per_s / kGiga)
                              : fmt::format("{:.1f} MB/s", bytes_per_s / kMega);
}

}  // namespace

std::vector<Link> measure_links(Communicator& world, ProcessGroup& group, const Machines& machines,
                                const Tensor& scratch, Stream& stream) {
  const int count = machines.count();
  const int rank = group.rank();
  const int machine = machines.of(rank);
  size_t places = machines.ranks(machine).size();  // that all machines have
  for (int m = 0; m < count; ++m) places = std::min(places, machines.ranks(m).size());
  const std::vector<int>& mine = machines.ranks(machine);
  const auto place = static_cast<size_t>(std::lower_bound(mine.begin(), mine.end(), rank) - mine.begin());
  LinkClock clock(world, group, scratch, stream);
  std::string found;
  const int directions = count > 2 ? 2 : 1;  // of two machines each is behind the other
  for (int direction = 1; direction > 1 - 2 * directions; direction -= 2) {
    const int next = wrapped(machine + direction, count);
    const int before = wrapped(machine - direction, count);
    for (int turn = 0; turn < 2 + count % 2; ++turn) {
      const bool sends = place < places && turn_of(machine, count) == turn;
      const bool receives = place < places && turn_of(before, count) == turn;
      const int from = receives ? machines.counterpart(rank, before) : Communicator::kNobody;
      const int to = sends ? machines.counterpart(rank, next) : Communicator::kNobody;
      const double rate = clock.rate(from, to);
      if (sends) found += fmt::format("{} {} {:.0f}\n", rank, to, rate);
    }
  }
  std::vector<Link> links;
  for (const std::string& text : group.all_gather(found)) {
    for (size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1) {
      Link& link = links.emplace_back();
      char* rest = nullptr;
      link.from = static_cast<int>(std::strtol(text.c_str() + begin, &rest, 10));
      link.to = static_cast<int>(std::strtol(rest, &rest, 10));
      link.bytes_per_s = std::strtod(rest, nullptr);
    }
  }
  return links;
}

std::vector<SlowLinks> find_slow_links(std::span<const Link> links, const Machines& machines) {
  std::vector<Link> sorted(links.begin(), links.end());
  std::sort(sorted.begin(), sorted.end(), [](const Link& a, const Link& b) { return a.bytes_per_s < b.bytes_per_s; });
  size_t slow = 0;
  double largest = kGap;
  for (size_t i = 1; i < sorted.size(); ++i) {
    const double gap = sorted[i].bytes_per_s / std::max(sorted[i - 1].bytes_per_s, 1.0);
    if (gap >= largest) slow = i;
    if (gap >= largest) largest = gap;
  }
  const std::span<const Link> others = std::span<const Link>(sorted).subspan(slow);
  std::vector<Link> left(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(slow));
  std::vector<SlowLinks> found;
  while (!left.empty()) {
    // How many of them end at each machine, and of those that have as many, where they begin.
    std::vector<std::pair<int, int>> ends(static_cast<size_t>(machines.count()));
    for (const Link& link : left) {
      auto& [count, begins] = ends[static_cast<size_t>(machines.of(link.from))];
      ++count;
      ++begins;
      ++ends[static_cast<size_t>(machines.of(link.to))].first;
    }
    const auto machine = static_cast<int>(std::max_element(ends.begin(), ends.end()) - ends.begin());
    const auto other = std::stable_partition(left.begin(), left.end(), [&](const Link& link) {
      return machines.of(link.from) != machine && machines.of(link.to) != machine;
    });
    found.push_back(slow_links_of(machine, std::span<const Link>(other, left.end()), others, machines));
    left.erase(other, left.end());
  }
  const size_t most = std::max(machines.count() / 4, 1);
  return found.size() <= most ? found : std::vector<SlowLinks>();
}

std::string describe(const SlowLinks& links, const Machines& machines, std::span<const std::string> hosts) {
  const auto host = [&](int machine) { return hosts[static_cast<size_t>(machine)]; };
  const std::vector<int>& ranks = machines.ranks(links.machine);
  std::string who = host(links.machine);
  if (links.rank) {
    who = fmt::format("rank {} on {}", *links.rank, who);
  } else {
    who += ranks.size() == 1 ? fmt::format(" (rank {})", ranks.front())
                             : fmt::format(" (ranks {} to {})", ranks.front(), ranks.back());
  }
  const char* does = links.sends && links.receives ? "sends and receives" : links.sends ? "sends" : "receives";
  std::string whom;
  if (links.other && !(links.sends && links.receives)) {
    whom = fmt::format(" {} {}", links.sends ? "to" : "from", host(*links.other));
  }
  return fmt::format("{} {} {}{}, the other links carry {}", who, does, rate_text(links.bytes_per_s), whom,
                     rate_text(links.others));
}

}  // namespace octavo

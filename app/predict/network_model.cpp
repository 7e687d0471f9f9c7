#include "app/predict/network_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace octavo {

namespace {

// Slowdown of a collective over NVLink that overlaps with matmuls. Published factors are 1.1 to 3.5; this value agrees
// with the times of layers of 70B and 405B models on 4 GPUs.
constexpr double kOverlapSlowdown = 1.5;
// Share of a network card's rate that NCCL reaches: 46 to 48 of 50 GB/s.
constexpr double kNetworkShare = 0.94;
// Time that the host takes to post a message to one rank of an all_to_all.
constexpr double kPost_s = 1e-6;

struct Protocol {
  double nvlink_hop_s;  // Latency of a hop within a node, at least the time of posting a message to the network.
  double ring_hop;      // Latency between nodes in rings as a share of NetworkRates::latency_us.
  double tree_hop;      // ring_hop for trees, and for rings with one rank per node, where nothing hides the latency.
  double ring_share;    // Share of the bus bandwidth.
  double tree_share;
  double two_nodes_bytes_per_s;  // Maximum rate of the protocol on two nodes.
  double nodes_bytes_per_s;      // Maximum rate of the protocol on more than two nodes.
};
constexpr double kNoBound = std::numeric_limits<double>::infinity();
constexpr double kSimpleHop_us = 14;
constexpr auto kProtocols = std::to_array<Protocol>({
    {1.0e-6, 2.7 / kSimpleHop_us, 5.0 / kSimpleHop_us, 0.5, 0.92 / 3.8, 39e9, 20.4e9},               // Protocol LL.
    {1.9e-6, 4.0 / kSimpleHop_us, 8.5 / kSimpleHop_us, 0.92, 0.92 * 120 / 128, kNoBound, kNoBound},  // Protocol LL128.
    {3.4e-6, 14.0 / kSimpleHop_us, 14.0 / kSimpleHop_us, 1.0, 0.92, kNoBound, kNoBound},             // Protocol Simple.
});
// Constants of PAT, which only uses the protocol Simple.
constexpr double kPatShare = 0.75;
constexpr double kPatHop = 1 / 3.5;
constexpr double kPatRank_s = 2.8e-6;

const CollectiveRates& collectives_of(const MachineRates& machine) {
  CHECK_INPUT(machine.collectives.has_value(),
              "the machine file of {} has no collectives, which a plan for several ranks needs; measure them with "
              "octavo doctor --save under mpirun",
              machine.name);
  return *machine.collectives;
}

double real(int64_t value) { return static_cast<double>(value); }

// Returns the share of a tensor that other ranks of the group hold.
double peers_share(const RankSpread& group) { return real(group.ranks - 1) / real(group.ranks); }

// Returns the bandwidth that NCCL reaches with one network card.
double card_bytes_per_s(const NetworkRates& network) { return network.gbps * 1e9 / 8 * kNetworkShare; }

// Properties of the network for one group.
struct Path {
  double bus = 0;  // Bandwidth of all ranks of the group on a node together.
  double hop_s = 0;
  double levels = 0;  // Number of levels in a tree of the nodes.
};

double ring_seconds(const Path& path, const RankSpread& group, double rounds, double bytes, const Protocol& p) {
  const double most = group.nodes() <= 2 ? p.two_nodes_bytes_per_s : p.nodes_bytes_per_s;
  const double hop_s = path.hop_s * (group.per_node == 1 ? p.tree_hop : p.ring_hop);
  const double steps_s = real(group.nodes() - 1) * (hop_s + real(group.per_node - 1) * p.nvlink_hop_s);
  return rounds * (steps_s + bytes * peers_share(group) / std::min(path.bus * p.ring_share, most));
}

double tree_seconds(const Path& path, const RankSpread& group, double bytes, const Protocol& p) {
  const double most = group.nodes() <= 2 ? p.two_nodes_bytes_per_s : p.nodes_bytes_per_s;
  return 2 * (path.levels * path.hop_s * p.tree_hop + bytes / std::min(path.bus * p.tree_share, most));
}

double pat_seconds(const Path& path, const RankSpread& group, double bytes) {
  const double ranks = real(group.ranks);
  return path.levels * path.hop_s * kPatHop + ranks * kPatRank_s + bytes * peers_share(group) / (path.bus * kPatShare);
}

double all_to_all_seconds(const RankSpread& group, double bytes, double nvlink, double card) {
  const double ranks = real(group.ranks);
  const double local = real(group.per_node);
  return (ranks - local) * kPost_s +
         std::max(bytes * (local - 1) / ranks / nvlink, bytes * (ranks - local) / ranks / card);
}

}  // namespace

RankSpread spread(int64_t ranks, int64_t stride, int64_t ranks_per_node) {
  const int64_t per_node = std::max<int64_t>(ranks_per_node / stride, 1);
  return {ranks, std::min(ranks, per_node)};
}

CollectiveKind collective_named(std::string_view op) {
  // Names in the order of CollectiveKind.
  constexpr auto kNames = std::to_array<std::string_view>({"all_gather", "reduce_scatter", "all_reduce", "all_to_all"});
  const auto* found = std::ranges::find(kNames, op);
  CHECK(found != kNames.end(), "a collective \"{}\", expected one of parallel/communicator.h", op);
  return static_cast<CollectiveKind>(found - kNames.begin());
}

double collective_seconds(const MachineRates& machine, const NetworkRates& network, const RankSpread& group,
                          CollectiveKind op, double bytes, Overlap overlap) {
  if (group.ranks == 1) return 0;
  const CollectiveRates& rates = collectives_of(machine);
  const double nvlink = rates.bus_bytes_per_s / (overlap == Overlap::kCompute ? kOverlapSlowdown : 1);
  const double rounds = op == CollectiveKind::kAllReduce ? 2 : 1;
  if (group.nodes() == 1) return rates.latency_s + rounds * bytes * peers_share(group) / nvlink;
  const double card = card_bytes_per_s(network);
  if (op == CollectiveKind::kAllToAll) return rates.latency_s + all_to_all_seconds(group, bytes, nvlink, card);
  const Path path{.bus = std::min(nvlink, real(group.per_node) * card),
                  .hop_s = network.latency_us * 1e-6,
                  .levels = std::ceil(std::log2(real(group.nodes())))};
  double seconds = kNoBound;
  for (const Protocol& protocol : kProtocols) {
    seconds = std::min(seconds, ring_seconds(path, group, rounds, bytes, protocol));
    if (op == CollectiveKind::kAllReduce) seconds = std::min(seconds, tree_seconds(path, group, bytes, protocol));
  }
  if (group.per_node == 1 && op != CollectiveKind::kAllReduce) {
    seconds = std::min(seconds, pat_seconds(path, group, bytes));
  }
  return rates.latency_s + seconds;
}

double send_seconds(const MachineRates& machine, const NetworkRates& network, const RankSpread& group, double bytes) {
  const CollectiveRates& rates = collectives_of(machine);
  if (group.nodes() == 1) return rates.latency_s + bytes * kOverlapSlowdown / rates.bus_bytes_per_s;
  return rates.latency_s + network.latency_us * 1e-6 + bytes / card_bytes_per_s(network);
}

}  // namespace octavo

// Predicts the time of collectives with NCCL's rings, trees and parallel aggregated trees (PAT) from the ranks, the
// bytes and the places of the ranks. Units are seconds and bytes. A node has g ranks of the group, and the group has n
// ranks on m nodes.
//
// Within a node the time is what the machine file measured, whatever algorithm NCCL chose:
//   rounds bytes (n-1)/n / bus + latency         rounds: 2 of all_reduce, which sends everything twice; else 1
// Between nodes it is the shortest time among NCCL's algorithms, each with a latency of
//   ring        rounds ((m-1) (hop + (g-1) nvlink_hop) + bytes (n-1)/n / (bus share))
//   tree        2 (ceil(log2 m) hop + bytes / (bus share))                            all_reduce
//   PAT         ceil(log2 m) hop / 3.5 + 2.8 us n + bytes (n-1)/n / (bus share)       g = 1, all_gather, reduce_scatter
// each by a protocol: LL and LL128 have short hops and a share of the bus, Simple long hops and all of it. In
//   bus = min(NVLink's as measured, g cards of network_gbps as NCCL reaches them)
// g is what a group that fills its nodes has over one whose ranks lie on one rail (equal local ranks: g = 1).
// all_to_all has neither rings nor trees: what goes to other nodes goes through each rank's own card,
//   max(bytes (g-1)/n / NVLink's bus, bytes (n-g)/n / card) + (n-g) 1 us
//
// Rails: the cards of equal local rank of 32 nodes hang on one leaf switch, and leaf switches are joined by links that
// are `network_oversubscription` times too few for all cards at once. A ring of adjacent nodes leaves a leaf through
// one card in 32; one whose neighbours lie s nodes apart runs beside s - 1 others, and needs min(s, 32)/32 of the
// links. It is assumed that ranks are numbered along the network, as launchers with its topology do.
//
// Sources: latencies, shares and formulas NCCL 2.28.3, src/graph/tuning.cc (its model of itself, H100 and Intel); bus
// bandwidth nccl-tests, doc/PERFORMANCE.md; 46 to 48 GB/s of a card of 400 Gbit/s https://github.com/NVIDIA/nccl-tests/
// issues/290; all_to_all by single cards https://github.com/NVIDIA/nccl-tests/issues/267; PAT https://arxiv.org/abs/
// 2506.20252; 32 nodes a leaf: NVIDIA DGX SuperPOD H100 reference architecture. Reductions within switches (SHARP,
// NVLink's multicast) are not in it. docs/internals/prediction.md compares it with published measurements.
#pragma once

#include <cstdint>
#include <string_view>

#include "app/plan/machine_rates.h"

namespace octavo {

// Connection of GPUs beyond the measured machine.
struct Cluster {
  int64_t gpus_per_node = 8;
  double network_gbps = 400;  // Gbit/s of each GPU's card to other nodes.
  // Latency of one hop between nodes with the protocol Simple. Those of the other protocols scale with it.
  double network_latency_us = 14;
  double network_oversubscription = 1;  // Oversubscription of the links between leaf switches, at least 1.
};

// Ranks of a collective, the number of them that share a node, and the distance in nodes of neighbours on different
// nodes.
struct RankSpread {
  int64_t ranks = 1;
  int64_t per_node = 1;
  int64_t node_stride = 1;
  int64_t nodes() const { return (ranks + per_node - 1) / per_node; }
};
// Returns the ranks of an axis whose neighbours are `stride` ranks apart.
RankSpread spread(int64_t ranks, int64_t stride, const Cluster& cluster);

enum class CollectiveKind : uint8_t { kAllGather, kReduceScatter, kAllReduce, kAllToAll };
// Returns the collective with the name that parallel/communicator.h records.
CollectiveKind collective_named(std::string_view op);

// Whether a collective has the machine to itself, or shares its multiprocessors and memory with matmuls.
enum class Beside : uint8_t { kNothing, kCompute };

// Returns the time of a collective. `bytes` is the size of the whole tensor: gathered, before scattering, reduced, or
// everything that a rank receives and keeps. It is 0 for one rank, and never decreases with more bytes or more ranks of
// the same kind. Throws an InputError if the machine has no collectives.
double collective_seconds(const MachineRates& machine, const Cluster& cluster, const RankSpread& group,
                          CollectiveKind op, double bytes, Beside beside = Beside::kNothing);

// Returns the bandwidth as nccl-tests and machine files count it: bytes (n-1)/n over the seconds, twice that for
// all_reduce.
double bus_bytes_per_s(const MachineRates& machine, const Cluster& cluster, const RankSpread& group, CollectiveKind op,
                       double bytes);

}  // namespace octavo

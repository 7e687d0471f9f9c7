// Predicts the time of collectives that NCCL executes with rings, trees and parallel aggregated trees (PAT). The inputs
// are the number of ranks, the bytes, and the nodes that the ranks are on. Units are seconds and bytes. In the
// formulas, the group has n ranks on m nodes, with g ranks per node.
//
// Within a node, the time follows from the rates in the machine file, whatever algorithm NCCL chose:
//   rounds bytes (n-1)/n / bus + latency
// Here rounds is 2 for all_reduce, which sends everything twice, and 1 otherwise.
// Between nodes, the fastest of NCCL's algorithms is assumed. In addition to the latency within a node, they take
//   ring        rounds ((m-1) (hop + (g-1) nvlink_hop) + bytes (n-1)/n / (bus share))
//   tree        2 (ceil(log2 m) hop + bytes / (bus share))
//   PAT         ceil(log2 m) hop / 3.5 + 2.8 us n + bytes (n-1)/n / (bus share)
// Trees are used for all_reduce, and PAT for all_gather and reduce_scatter with g = 1. Each algorithm uses the best
// protocol. LL and LL128 have a low latency per hop and reach a share of the bus bandwidth. Simple has a high latency
// and reaches all of the bandwidth. The bandwidth is
//   bus = min(NVLink as measured, g network cards at the rate that NCCL reaches)
// A group that fills its nodes therefore has g times the network bandwidth of a group whose ranks lie on one rail
// (ranks with equal local numbers, g = 1). all_to_all uses neither rings nor trees. Each rank sends its data for other
// nodes through its own card:
//   max(bytes (g-1)/n / NVLink's bus, bytes (n-g)/n / card) + (n-g) 1 us
// A transfer between two ranks takes hop + bytes / card between nodes, and bytes / NVLink's bus within a node.
//
// Links between leaf switches are assumed to be as fast as the links of the nodes.
//
// Sources. Latencies, shares and formulas: NCCL 2.28.3, src/graph/tuning.cc (NCCL's own model, for H100 and Intel
// CPUs). Bus bandwidth: nccl-tests, doc/PERFORMANCE.md. 46 to 48 GB/s for a card of 400 Gbit/s:
// https://github.com/NVIDIA/nccl-tests/issues/290. all_to_all through single cards:
// https://github.com/NVIDIA/nccl-tests/issues/267. PAT: https://arxiv.org/abs/2506.20252. Reductions inside of switches
// (SHARP, NVLink multicast) are not modelled. docs/internals/prediction.md compares the predictions with published
// measurements.
#pragma once

#include <cstdint>
#include <string_view>

#include "app/predict/machine_rates.h"

namespace octavo {

// Network between nodes, which are assumed to be like the measured machine.
struct NetworkRates {
  double gbps = 400;  // Rate of each GPU's network card in Gbit/s.
  // Latency of one hop between nodes with the protocol Simple in microseconds. The latencies of the other protocols are
  // proportional to it.
  double latency_us = 14;
};

// Number of ranks of a collective, and how many of these ranks share a node.
struct RankSpread {
  int64_t ranks = 1;
  int64_t per_node = 1;
  int64_t nodes() const { return (ranks + per_node - 1) / per_node; }
};
// Returns the spread of an axis whose neighbouring ranks differ by `stride` in their rank numbers.
RankSpread spread(int64_t ranks, int64_t stride, int64_t ranks_per_node);

enum class CollectiveKind : uint8_t { kAllGather, kReduceScatter, kAllReduce, kAllToAll };
// Returns the kind of the collective that parallel/communicator.h records with the name `op`.
CollectiveKind collective_named(std::string_view op);

// Work that runs at the same time as a collective. Matmuls take some of the GPU's multiprocessors and memory bandwidth.
enum class Overlap : uint8_t { kNothing, kCompute };

// Returns the time of a collective in seconds. `bytes` is the size of the whole tensor: gathered, before scattering,
// reduced, or for all_to_all everything that a rank receives and keeps. The time is 0 for one rank, and never decreases
// when bytes or the number of ranks grow. Throws an InputError if the machine file has no collectives.
double collective_seconds(const MachineRates& machine, const NetworkRates& network, const RankSpread& group,
                          CollectiveKind op, double bytes, Overlap overlap = Overlap::kNothing);

// Returns the time in seconds in which every rank of a group, while it computes, sends `bytes` to the next rank of the
// group. If the group has several nodes, the time is that of two ranks on different nodes. Throws like
// collective_seconds().
double send_seconds(const MachineRates& machine, const NetworkRates& network, const RankSpread& group, double bytes);

}  // namespace octavo

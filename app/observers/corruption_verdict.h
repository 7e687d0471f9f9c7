// Decides from the hashes of all ranks which ranks may be wrong:
//
//   replicas        If several ranks hold the same state, a replica whose hash differs from the hash of the majority is
//                   wrong. If no hash has a majority, any of the replicas may be wrong.
//   computed twice  A rank whose micro-batch gave different bits the second time is wrong. This also decides between
//                   replicas without a majority.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace octavo {

// A part of the state that a rank holds and hashes.
struct HashedPart {
  std::string what;  // Name of the part, such as "exp_avg of block 3 (shard 1)". Parts of equal names must be equal.
  // Name of the replica to which this part belongs if its slices are spread over several ranks. The hashes of the
  // slices add up to the hash of the replica. Empty if this rank holds the whole replica.
  std::string copy;
};

// Facts about a rank that do not change during the run.
struct CheckedRank {
  std::string place;  // "node7, GPU 3 (GPU-4f1c...)"
  std::vector<HashedPart> parts;
};

// Hashes of a rank in one check.
struct RankHashes {
  // Hashes of the results of both passes. Both vectors are equal if no micro-batch was computed twice.
  std::vector<uint64_t> first, second;
  std::vector<uint64_t> parts;  // Hashes of CheckedRank::parts, in the same order.
};

struct CorruptionVerdict {
  std::vector<int> ranks;  // Ranks that may be wrong, in ascending order. Empty if nothing differs.
  bool replicas_differ =
      false;            // Whether the ranks' replicas of the state differ, so that the state must not be saved.
  std::string message;  // Names the ranks, their machines and GPUs, and what differs.
};

// Compares the hashes of all ranks. `results` has the names of a micro-batch's results, such as "losses" and "gradients
// of block 3".
CorruptionVerdict judge(std::span<const CheckedRank> ranks, std::span<const RankHashes> hashes,
                        std::span<const std::string> results);

}  // namespace octavo

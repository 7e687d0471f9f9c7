// Decides from the hashes of all ranks which ranks may be wrong:
//
//   copies           Of what several ranks hold alike, a copy whose hash most of the copies do not have is wrong. Where
//                    no hash has a majority, any of the copies may be wrong.
//   computed twice   A rank whose micro-batch gave other bits the second time is wrong. That also decides between
//   copies
//                    without a majority.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace octavo {

// A hash of something that a rank holds.
struct HashedPart {
  std::string what;  // equal for parts that must be equal: "exp_avg of block 3 (shard 1)"
  // Where ranks share a copy: the copy of which this part is a stretch. The hashes of its stretches add up to the hash
  // of the copy. Empty where this rank has a copy for itself.
  std::string copy;
};

// Facts about a rank that are known from the start.
struct CheckedRank {
  std::string place;  // "node7, GPU 3 (GPU-4f1c...)"
  std::vector<HashedPart> parts;
};

// The hashes of a rank in one check.
struct RankHashes {
  std::vector<uint64_t> first, second;  // by result, of the micro-batch computed twice; equal where none was computed
  std::vector<uint64_t> parts;          // by CheckedRank::parts
};

struct CorruptionVerdict {
  std::vector<int> ranks;      // ranks that may be wrong, in order; empty where nothing differs
  bool copies_differ = false;  // whether what ranks hold differs, so that it is not to be saved
  std::string message;         // names the ranks, where they are, and what differs
};

// `results`: the names of what a micro-batch leaves, "losses" and "gradients of block 3".
CorruptionVerdict judge(std::span<const CheckedRank> ranks, std::span<const RankHashes> hashes,
                        std::span<const std::string> results);

}  // namespace octavo

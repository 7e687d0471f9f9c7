// What hashes of all ranks say about who is wrong. On the host, from what was gathered on one rank.
//
//   copies        of what several ranks hold alike, those that the most of its copies do not equal are wrong; where no
//                 value has a majority, any may be
//   computed twice   a rank whose micro-batch gave other bits the second time is wrong
//   neighbors     two ranks that got other bits for one micro-batch: one of them is wrong, and a rank that differs from
//                 both of its neighbors, where there are three, is it
//
// A rank that is wrong by itself (computed twice) decides between copies without a majority, and between neighbors.
// Where copies differ, so do the micro-batches of all who use them: then neighbors only decide between those copies.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace octavo {

// A hash of something that a rank holds.
struct HashedPart {
  std::string what;  // the same for parts that must be equal: "exp_avg of block 3 (shard 1)"
  // Of parts of that name, those with the same `copy` are stretches of one copy, whose hashes add up: where ranks share
  // it. Empty: this rank has a copy of its own.
  std::string copy;

  bool operator==(const HashedPart&) const = default;
};

// What is known of a rank from the start.
struct CheckedRank {
  std::string place;      // "node7, GPU 3 (GPU-4f1c...)"
  std::string processor;  // two of another kind may round differently
  int neighbor = 0;       // the rank whose micro-batch it computes as well; its own: there is none
  std::vector<HashedPart> parts;
};

// A check's hashes of a rank.
struct RankHashes {
  std::vector<uint64_t> parts;  // as CheckedRank::parts
  // By result of a micro-batch; empty where none was computed again.
  std::vector<uint64_t> first, second, of_neighbor;
};

struct CorruptionVerdict {
  std::vector<int> ranks;      // that may be wrong, in order; empty: nothing differs
  bool copies_differ = false;  // what ranks hold, so that it is not to be saved
  std::string message;         // names the ranks, where they are, and what differs
};

// `results`: the names of what a micro-batch leaves, "losses" and "gradients of block 3".
CorruptionVerdict judge(std::span<const CheckedRank> ranks, std::span<const RankHashes> hashes,
                        std::span<const std::string> results);

}  // namespace octavo

#include "app/observers/corruption_verdict.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/error.h"

namespace octavo {

namespace {

using RankSet = std::set<int>;

// A difference that one of the comparisons found.
struct Difference {
  RankSet suspects;               // Ranks of which at least one is wrong.
  std::vector<std::string> what;  // Names of the parts that differ, in the order of the first rank that holds them.

  bool found() const { return !suspects.empty(); }
};

// Formats names as "weights of block 3 and 5 others".
std::string list(const std::vector<std::string>& what) {
  if (what.size() == 1) return what.front();
  return fmt::format("{} and {} other{}", what.front(), what.size() - 1, what.size() == 2 ? "" : "s");
}

std::string names(const RankSet& ranks, std::span<const CheckedRank> all) {
  constexpr size_t kNamed = 4;
  std::string text;
  size_t named = 0;
  for (const int rank : ranks) {
    if (named == kNamed) return text + fmt::format(" or {} others", ranks.size() - kNamed);
    text += fmt::format("{}rank {} on {}", named++ == 0 ? "" : " or ", rank, all[static_cast<size_t>(rank)].place);
  }
  return text;
}

// Combines the suspects of two findings. If one set contains the other, the smaller one is right, because the larger
// one resulted from a sum over several ranks' slices or from two replicas without a majority. Otherwise both sets are
// suspects.
RankSet merge(const RankSet& a, const RankSet& b) {
  if (!b.empty() && std::ranges::includes(a, b)) return b;
  if (!a.empty() && std::ranges::includes(b, a)) return a;
  RankSet both = a;
  both.insert(b.begin(), b.end());
  return both;
}

// One replica of a part of the training state (HashedPart).
struct Copy {
  uint64_t hash = 0;
  RankSet ranks;  // Ranks that hold slices of the replica.
};
using Copies = std::map<std::string, Copy>;

// Returns the ranks of the replicas whose hash differs from that of the majority, or of all replicas if no hash has a
// majority.
RankSet minority(const Copies& copies) {
  std::map<uint64_t, size_t> counts;
  for (const auto& [name, copy] : copies) ++counts[copy.hash];
  if (counts.size() == 1) return {};
  const auto most = std::ranges::max_element(counts, [](const auto& a, const auto& b) { return a.second < b.second; });
  const bool has_majority = 2 * most->second > copies.size();
  RankSet ranks;
  for (const auto& [name, copy] : copies) {
    if (!has_majority || copy.hash != most->first) ranks.insert(copy.ranks.begin(), copy.ranks.end());
  }
  return ranks;
}

Difference compare_copies(std::span<const CheckedRank> ranks, std::span<const RankHashes> hashes) {
  std::map<std::string, Copies> parts;
  std::vector<std::string> order;
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (size_t i = 0; i < ranks[r].parts.size(); ++i) {
      const auto& [what, copy] = ranks[r].parts[i];
      const auto [found, is_new] = parts.try_emplace(what);
      if (is_new) order.push_back(what);
      Copy& mine = found->second[copy.empty() ? fmt::format("rank {}", r) : copy];
      mine.hash += hashes[r].parts[i];
      mine.ranks.insert(static_cast<int>(r));
    }
  }
  Difference difference;
  for (const std::string& what : order) {
    const RankSet suspects = minority(parts.at(what));
    if (suspects.empty()) continue;
    difference.what.push_back(what);
    difference.suspects = merge(difference.suspects, suspects);
  }
  return difference;
}

Difference compare_passes(std::span<const RankHashes> hashes, std::span<const std::string> results) {
  Difference difference;
  for (size_t i = 0; i < results.size(); ++i) {
    bool differs = false;
    for (size_t r = 0; r < hashes.size(); ++r) {
      if (hashes[r].first[i] == hashes[r].second[i]) continue;
      difference.suspects.insert(static_cast<int>(r));
      differs = true;
    }
    if (differs) difference.what.push_back(results[i]);
  }
  return difference;
}

}  // namespace

CorruptionVerdict judge(std::span<const CheckedRank> ranks, std::span<const RankHashes> hashes,
                        std::span<const std::string> results) {
  const Difference twice = compare_passes(hashes, results);
  const Difference copies = compare_copies(ranks, hashes);
  std::vector<std::string> clauses;
  if (twice.found()) clauses.push_back("a micro-batch computed twice gives different " + list(twice.what));
  if (copies.found()) clauses.push_back("replicas differ in " + list(copies.what));
  if (clauses.empty()) return {};
  const RankSet suspects = merge(twice.suspects, copies.suspects);
  return {.ranks = {suspects.begin(), suspects.end()},
          .replicas_differ = copies.found(),
          .message = fmt::format("silent corruption on {}: {}", names(suspects, ranks), fmt::join(clauses, "; "))};
}

}  // namespace octavo

#include "app/guard/corruption_verdict.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "core/error.h"

namespace octavo {

namespace {

using RankSet = std::set<int>;

// What some comparison found.
struct Difference {
  RankSet suspects;               // one of them is wrong, or all
  std::vector<std::string> what;  // differs, in the order of the first rank that has it

  bool found() const { return !suspects.empty(); }
};

// "weights of block 3 and 5 others"
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

// Of two findings the narrower is right, where one lies within the other (sums are of several ranks' stretches, two
// copies have no majority); else they are findings of their own.
RankSet merge(const RankSet& a, const RankSet& b) {
  RankSet both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::inserter(both, both.end()));
  if (!both.empty() && (both.size() == a.size() || both.size() == b.size())) return both;
  both = a;
  both.insert(b.begin(), b.end());
  return both;
}

// One of the copies of a part.
struct Copy {
  uint64_t hash = 0;
  RankSet ranks;  // that have stretches of it
};
using Copies = std::map<std::string, Copy>;

// The ranks of copies that differ from what the most are; of all copies where no value has a majority.
RankSet minority(const Copies& copies) {
  std::map<uint64_t, size_t> counts;
  for (const auto& [name, copy] : copies) ++counts[copy.hash];
  if (counts.size() == 1) return {};
  const auto most =
      std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
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

void add_differing(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b, std::span<const std::string> results,
                   std::vector<std::string>& what) {
  for (size_t i = 0; i < a.size(); ++i) {
    const bool is_listed = std::find(what.begin(), what.end(), results[i]) != what.end();
    if (a[i] != b[i] && !is_listed) what.push_back(results[i]);
  }
}

Difference compare_passes(std::span<const RankHashes> hashes, std::span<const std::string> results) {
  Difference difference;
  for (size_t r = 0; r < hashes.size(); ++r) {
    if (hashes[r].first == hashes[r].second) continue;
    difference.suspects.insert(static_cast<int>(r));
    add_differing(hashes[r].first, hashes[r].second, results, difference.what);
  }
  return difference;
}

// A rank that differs from both neighbors, of three ranks or more, is wrong; else either may be.
Difference compare_neighbors(std::span<const CheckedRank> ranks, std::span<const RankHashes> hashes,
                             std::span<const std::string> results) {
  Difference difference;
  std::map<int, int> pairs;  // that differ, by rank
  for (size_t r = 0; r < ranks.size(); ++r) {
    const auto neighbor = static_cast<size_t>(ranks[r].neighbor);
    const bool comparable = neighbor != r && ranks[r].processor == ranks[neighbor].processor;
    if (!comparable || hashes[r].of_neighbor == hashes[neighbor].first) continue;
    ++pairs[static_cast<int>(r)];
    ++pairs[ranks[r].neighbor];
    add_differing(hashes[r].of_neighbor, hashes[neighbor].first, results, difference.what);
  }
  int most = 0;
  for (const auto& [rank, count] : pairs) most = std::max(most, count);
  for (const auto& [rank, count] : pairs) {
    if (count == most) difference.suspects.insert(rank);
  }
  return difference;
}

// Ranks that hold something else compute something else, and those that share a sharded copy with them: then neighbors
// only decide between the copies.
void leave_to(const Difference& copies, Difference& neighbors) {
  if (!copies.found()) return;
  std::erase_if(neighbors.suspects, [&](int rank) { return !copies.suspects.contains(rank); });
}

}  // namespace

CorruptionVerdict judge(std::span<const CheckedRank> ranks, std::span<const RankHashes> hashes,
                        std::span<const std::string> results) {
  const Difference copies = compare_copies(ranks, hashes);
  const Difference twice = compare_passes(hashes, results);
  Difference neighbors = compare_neighbors(ranks, hashes, results);
  leave_to(copies, neighbors);
  RankSet suspects;
  std::string text;
  const auto add = [&](const Difference& difference, const std::string& clause) {
    if (!difference.found()) return;
    suspects = merge(suspects, difference.suspects);
    text += fmt::format("{}{}", text.empty() ? "" : "; ", clause + list(difference.what));
  };
  add(twice, "a micro-batch computed twice gives different ");
  add(copies, "copies differ in ");
  add(neighbors, "a micro-batch computed by two ranks gives different ");
  if (suspects.empty()) return {};
  return {.ranks = {suspects.begin(), suspects.end()},
          .copies_differ = copies.found(),
          .message = fmt::format("silent corruption on {}: {}", names(suspects, ranks), text)};
}

}  // namespace octavo

#include "app/guard/link_suspects.h"

#include <algorithm>

namespace octavo {

namespace {

constexpr int kLooks = 4;  // in which a suspect is found again, or let go

bool contains(const std::vector<SlowLinks>& all, const SlowLinks& links) {
  return std::any_of(all.begin(), all.end(), [&](const SlowLinks& other) { return links.same_place(other); });
}

}  // namespace

std::vector<SlowLinks> LinkSuspects::judge(const std::vector<SlowLinks>& found) {
  std::vector<SlowLinks> confirmed;
  std::vector<SlowLinks> fresh;
  for (const SlowLinks& links : found) {
    if (contains(named_, links)) continue;
    const bool again = std::any_of(suspects_.begin(), suspects_.end(),
                                   [&](const Suspect& suspect) { return links.same_place(suspect.links); });
    (again ? confirmed : fresh).push_back(links);
  }
  named_.insert(named_.end(), confirmed.begin(), confirmed.end());
  for (Suspect& suspect : suspects_) --suspect.looks;
  std::erase_if(suspects_,
                [&](const Suspect& suspect) { return suspect.looks == 0 || contains(confirmed, suspect.links); });
  suspects_.reserve(suspects_.size() + fresh.size());
  for (const SlowLinks& links : fresh) suspects_.push_back({links, kLooks});
  return confirmed;
}

}  // namespace octavo

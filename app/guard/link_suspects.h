// Which of the links that looks found slow are slow, and not in a bad moment of a shared machine: those that one of the
// next few looks finds again.
#pragma once

#include <vector>

#include "parallel/links.h"

namespace octavo {

class LinkSuspects {
 public:
  // Of each look, what it found. Those that are slow now for certain, each once in a run.
  std::vector<SlowLinks> judge(const std::vector<SlowLinks>& found);
  // Whether another look is wanted for them.
  bool wants_look() const { return !suspects_.empty(); }

 private:
  struct Suspect {
    SlowLinks links;
    int looks = 0;  // that may still find it again
  };
  std::vector<Suspect> suspects_;
  std::vector<SlowLinks> named_;
};

}  // namespace octavo

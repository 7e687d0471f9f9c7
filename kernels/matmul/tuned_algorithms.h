// What timing has chosen, so that it is timed once: of each problem (a product, with all that decides how fast its
// algorithms are) the algorithm of the library that was fastest, both as text. A stream's state:
// stream.state<TunedAlgorithms>().
//
// As text it is {"on": "NVIDIA H200, cuBLASLt 13.1.0, cuDNN 9.14.0", "algorithms": {problem: algorithm, ...}}. What a
// library writes down of an algorithm holds for its own version alone, so a text of another GPU or of other versions
// counts as empty.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/stream.h"

namespace octavo {

class TunedAlgorithms {
 public:
  TunedAlgorithms() = default;
  explicit TunedAlgorithms(Stream&) {}

  // Adds what text() gave where `on` was the same. InputError, and nothing added, when it is not such a text.
  void add(std::string_view text, const std::string& on);
  std::string text(const std::string& on) const;

  // Nothing, where the problem is new. The pointer holds until the next call that is not const.
  const std::string* find(const std::string& problem) const;
  // The problem was timed, and this was the fastest.
  void keep(const std::string& problem, const std::string& algorithm);
  // While it is set, a new problem is not timed at its first use, where kernels of other ranks' collectives may run,
  // but has the library's first proposal until choose_deferred().
  void set_deferring(bool deferring) { deferring_ = deferring; }
  bool deferring() const { return deferring_; }
  // Keeps the work that chooses an algorithm: times what is new, and takes what is known.
  void defer(std::function<void()> choose) { deferred_.push_back(std::move(choose)); }
  int64_t num_deferred() const { return static_cast<int64_t>(deferred_.size()); }
  // Does all deferred work, also that of earlier calls: after add() it takes what was added. Not while deferring.
  void choose_deferred() {
    for (const auto& choose : deferred_) choose();
  }
  // Forgets the deferred work.
  void clear_deferred() { deferred_.clear(); }

  // The problem could not be timed, for want of memory: it runs with the library's first proposal.
  void leave(const std::string& problem) {
    if (std::ranges::find(untimed_, problem) == untimed_.end()) untimed_.push_back(problem);
  }

  int64_t size() const { return static_cast<int64_t>(algorithms_.size()); }
  int64_t num_timed() const { return timed_; }  // by this process
  const std::vector<std::string>& untimed() const { return untimed_; }

 private:
  std::map<std::string, std::string> algorithms_;
  std::vector<std::string> untimed_;
  std::vector<std::function<void()>> deferred_;
  bool deferring_ = false;
  int64_t timed_ = 0;
};

}  // namespace octavo

// The algorithms that timing has chosen, so that each problem is timed once. A problem is a matmul with everything that
// decides how fast its algorithms are. Problems and the library's algorithms are stored as text. The object is a state
// of a stream: stream.state<TunedAlgorithms>().
//
// text() is JSON, {"on": "NVIDIA H200, cuBLASLt 13.1.0, cuDNN 9.14.0", "algorithms": {problem: algorithm, ...}}. A
// library's text of an algorithm is valid only for one version of the library, so the text of another GPU or of other
// versions counts as empty.
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

  // Adds the algorithms of a text() if its "on" equals `on`. Throws InputError, and adds nothing, if `text` is invalid.
  void add(std::string_view text, const std::string& on);
  std::string text(const std::string& on) const;

  // Returns the algorithm of a problem, or null if there is none. The pointer is valid until the next non-const call.
  const std::string* find(const std::string& problem) const;
  // Records the algorithm that was the fastest when the problem was timed.
  void keep(const std::string& problem, const std::string& algorithm);
  // Sets whether the timing of new problems is deferred, because collectives may run when a problem is first used. A
  // deferred problem runs with the library's first candidate until choose_deferred().
  void set_deferring(bool deferring) { deferring_ = deferring; }
  bool deferring() const { return deferring_; }
  // Adds a function that chooses the algorithm of a problem. The function times candidates if the problem is new, and
  // otherwise takes the recorded algorithm.
  void defer(std::function<void()> choose) { deferred_.push_back(std::move(choose)); }
  int64_t num_deferred() const { return static_cast<int64_t>(deferred_.size()); }
  // Calls all functions that defer() has added since the last clear_deferred(). A second call of choose_deferred()
  // calls the same functions again, so that they take the algorithms that add() has added in between.
  // Requires: deferring() is false.
  void choose_deferred() {
    for (const auto& choose : deferred_) choose();
  }
  // Removes all deferred functions.
  void clear_deferred() { deferred_.clear(); }

  // Records that the problem could not be timed for lack of memory. The problem runs with the library's first
  // candidate.
  void leave(const std::string& problem) {
    if (std::ranges::find(untimed_, problem) == untimed_.end()) untimed_.push_back(problem);
  }

  int64_t size() const { return static_cast<int64_t>(algorithms_.size()); }
  int64_t num_timed() const { return timed_; }  // Returns the number of problems that this process has timed.
  const std::vector<std::string>& untimed() const { return untimed_; }

 private:
  std::map<std::string, std::string> algorithms_;
  std::vector<std::string> untimed_;
  std::vector<std::function<void()>> deferred_;
  bool deferring_ = false;
  int64_t timed_ = 0;
};

}  // namespace octavo

// When the links between machines are worth a look: when the collectives over them take a good part of a step from the
// beginning, or much longer than before.
//
// Of steps that are measured, now and then: what every rank is in each kind of collective at least, which is the links'
// time and not that of a rank that others wait for.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

namespace octavo {

// A kind of collective that stands out.
struct TransferTime {
  std::string kind = {};
  double ms = 0;  // a step
  double step_ms = 0;
  std::optional<double> before_ms = {};  // the median of earlier steps, where it was much less
};

class TransferGrowth {
 public:
  // Of each measured step once, milliseconds by kind. True where the links should be looked at: again and again while
  // that lasts, each time after twice as many steps.
  bool judge(double step_ms, const std::map<std::string, double>& times);
  // Of the last of them, the kind that has grown most, or else takes longest.
  const TransferTime& time() const { return time_; }
  // The cause is known: from here on that is what it takes.
  void forget() { earlier_.clear(); }

 private:
  // When to look while there is reason to.
  class Looks {
   public:
    explicit Looks(int64_t needed) : needed_(needed) {}
    bool due(int64_t measured, bool has_reason);

   private:
    int64_t needed_;  // measured steps in a row that there is a reason in
    int64_t in_a_row_ = 0;
    int64_t next_ = 0;
    int64_t pause_ = 4;
  };

  TransferTime longest(double step_ms, const std::map<std::string, double>& times) const;
  std::optional<TransferTime> most_grown(double step_ms, const std::map<std::string, double>& times) const;

  std::map<std::string, std::deque<double>> earlier_;
  TransferTime time_;
  int64_t measured_ = 0;
  Looks at_long_ones_{3};
  Looks at_growth_{2};
};

}  // namespace octavo

// Where the time between the launch of a process and its first step goes: a run marks the end of each phase of its
// start, one after the other, and says once how long all of them took.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace octavo {

// Since the operating system started this process, the loading of its libraries included; since the first call where
// that is not known.
double seconds_since_launch();

class StartupTimer {
 public:
  // `clock`: seconds since the launch. What came before counts as "program".
  explicit StartupTimer(std::function<double()> clock = seconds_since_launch);

  // The time since the last mark was spent in `phase`; one may be marked several times, and its times are added.
  void mark(const std::string& phase);

  // Up to the last mark, phases in the order in which they were first marked: "5.8 s: program 0.1, MPI 0.4, NCCL 1.9".
  std::string report() const;

 private:
  std::function<double()> clock_;
  std::vector<std::pair<std::string, double>> phases_;
  double last_ = 0;
};

}  // namespace octavo

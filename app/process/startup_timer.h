// Measures the phases between the launch of a process and its first step. A run marks the end of each phase, and prints
// all times once.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace octavo {

// Returns the seconds since the operating system started this process, which includes loading its libraries. If that is
// unknown, returns the seconds since the first call.
double seconds_since_launch();

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

class StartupTimer {
 public:
  // `clock` returns the seconds since the launch. The time before construction is the phase "program".
  explicit StartupTimer(std::function<double()> clock = seconds_since_launch);

  // Adds the time since the previous mark to `phase`. A phase may be marked several times.
  void mark(const std::string& phase);

  // Returns the times up to the last mark, with the phases in the order of their first marks: "5.8 s: program 0.1, MPI
  // 0.4, NCCL 1.9".
  std::string report() const;

 private:
  std::function<double()> clock_;
  std::vector<std::pair<std::string, double>> phases_;
  double last_ = 0;
};

}  // namespace octavo

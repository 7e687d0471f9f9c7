// Goodput: the share of a run's wall time that was spent in steps that count, and where the rest went, kept over the
// run's restarts in DIR/goodput.json.
//
// The wall time of a run is that of its processes, and the time between the death of one and the start of the next
// (but not after one that ended by itself: nobody waited then). What was computed after the checkpoint that a restart
// goes on from is computed twice: it is taken from the steps and counted as recovery.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace octavo {

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

class Goodput {
 public:
  enum Use : size_t { kSteps, kStart, kTuning, kData, kSaving, kValidation, kChecks, kRecovery, kSkipped, kUses };

  // The clocks of a process: seconds since it was launched, and of the wall, since 1970.
  struct Clocks {
    std::function<double()> since_launch;
    std::function<double()> wall;
  };
  static Clocks system_clocks();

  // A run of the directory `dir`. `continues`: what an earlier process left there is taken up; `steps_s`: of its steps,
  // the seconds up to the checkpoint that this one goes on from.
  Goodput(std::string dir, bool continues, double steps_s, Clocks clocks = system_clocks());

  void add(Use use, double seconds) { seconds_[use] += seconds; }
  // The run was set back to a checkpoint: what its steps took beyond `steps_s` is lost.
  void set_back(double steps_s);

  double steps_seconds() const { return seconds_[kSteps]; }
  double wall_seconds() const;
  double share() const;  // of the wall time, in steps that count
  // "goodput 91.3% of 2h 5m: start 4.1%, recovery 2.0%, ..., other 0.4%", with those causes that took something.
  std::string report() const;
  nlohmann::ordered_json to_json() const;

  // Returns a function, for any thread, that writes the file as things stand now, and throws Error if it cannot.
  // Returns an empty function if the last time was a few seconds ago, unless it is the `end` of the run.
  std::function<void()> writing(bool end);

  static constexpr const char* kFileName = "goodput.json";

 private:
  void take_up(const nlohmann::json& earlier, double steps_s);

  std::string path_;
  Clocks clocks_;
  std::array<double, kUses> seconds_{};
  double earlier_wall_s_ = 0;  // up to the launch of this process
  int64_t restarts_ = 0;
  double written_ = 0;  // by the clock since launch
};

}  // namespace octavo

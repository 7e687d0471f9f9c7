// Measures goodput: the share of a run's wall time that was spent in steps that count, and what the rest was spent on.
// The numbers continue over the run's restarts in DIR/goodput.json.
//
// The wall time of a run includes the time between the death of one process and the start of the next, but not the time
// after a process that ended normally, because nobody waited then. Steps after the checkpoint that a restart resumes
// are computed twice. Their first computation counts as recovery instead of steps.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace octavo {

class Goodput {
 public:
  enum Use : size_t { kSteps, kStart, kTuning, kData, kSaving, kValidation, kChecks, kRecovery, kSkipped, kUses };

  // Clocks of a process in seconds: since its launch, and since 1970.
  struct Clocks {
    std::function<double()> since_launch;
    std::function<double()> wall;
  };
  static Clocks system_clocks();

  // Measures the run in the directory `dir`. If `continues` is true, adds the numbers of earlier processes. `steps_s`
  // is the time of all steps up to the resumed checkpoint; step time beyond it becomes recovery.
  Goodput(std::string dir, bool continues, double steps_s, Clocks clocks = system_clocks());

  void add(Use use, double seconds) { seconds_[use] += seconds; }
  // Records a rollback to a checkpoint. The time of steps beyond `steps_s` becomes recovery.
  void roll_back(double steps_s);

  double steps_seconds() const { return seconds_[kSteps]; }
  double wall_seconds() const { return earlier_wall_s_ + clocks_.since_launch(); }
  double share() const;  // Returns the goodput: the share of the wall time in steps that count.
  // Describes the goodput and the causes that took time: "goodput 91.3% of 2h 5m: start 4.1%, recovery 2.0%, ..., other
  // 0.4%".
  std::string report() const;
  nlohmann::ordered_json to_json() const;

  // Returns a thread-safe function that writes the current numbers to the file and throws an Error if it cannot.
  // Returns an empty function if the file was written in the last few seconds, unless this is the `end` of the run.
  std::function<void()> writing(bool end);

  static constexpr const char* kFileName = "goodput.json";

 private:
  void add_earlier(const nlohmann::json& earlier, double steps_s);

  std::string path_;
  Clocks clocks_;
  std::array<double, kUses> seconds_{};
  double earlier_wall_s_ = 0;  // Wall time of earlier processes up to the launch of this one.
  int64_t restarts_ = 0;
  double written_ = 0;  // Time of the last write since the launch.
};

}  // namespace octavo

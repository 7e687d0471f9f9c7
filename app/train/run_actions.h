// Performs the actions that decide() returns after a step: saves, rollbacks, changes of the precision, and the end of
// the run.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/config/config.h"
#include "app/log/step_log.h"
#include "app/observers/step_guard.h"
#include "app/process/runtime.h"
#include "app/records/goodput.h"
#include "app/run/validation.h"
#include "app/train/decide.h"
#include "app/train/precision_comparison.h"
#include "app/train/training_run.h"

namespace octavo {

// The parts of a run, which the trainer owns.
struct RunParts {
  const Config& config;
  Runtime& runtime;
  MemoryCheckpoints& memory_checkpoints;
  TrainingRun& run;
  Validator* validator;             // Null if data.validation is empty.
  StepGuard& step_guard;            // Judges the result of each step: skipped, a spike, slow.
  PrecisionComparison& comparison;  // Compares FP8 with bfloat16, as the config requests by precision.guard.
  StepLog& log;
  Goodput& goodput;
  std::vector<std::string>& lost_lines;  // Sentences about lines of log files that could not be written.
};

// perform() is a collective. The other methods are not.
class RunActions {
 public:
  explicit RunActions(const RunParts& parts);

  // Performs the actions. Returns the step after which the run continues, or nothing if the run has ended. Throws an
  // AgreedError if the run gives up.
  std::optional<int64_t> perform(const Actions& actions, const Facts& facts, int64_t step);

  // Records that the state after `step`, the last judged step, is the state to save if the run gives up.
  void remember_good_state(int64_t step) { good_ = progress_after(step); }
  // Sets the loader state that belongs to the state of the run after the last judged step.
  void set_loader_state(nlohmann::json state) { loader_state_ = std::move(state); }
  // Records the current time as the end of the last step.
  void note_result() { last_result_ = std::chrono::steady_clock::now(); }
  // Adds the time since `begin`, during which the device computed no step, to `use`.
  void account(Goodput::Use use, std::chrono::steady_clock::time_point begin);
  // Returns the seconds that account() has added since the last call.
  double take_accounted() { return std::exchange(accounted_s_, 0); }
  void write_goodput(bool end);

 private:
  void say(Notice notice, const Facts& facts, int64_t step) const;
  void save(Save which, int64_t step);
  [[noreturn]] void refuse_final_save(int64_t step);
  [[noreturn]] void give_up(int64_t step);
  void roll_back(Next to, int64_t spike);
  void roll_back_to_checkpoint(int64_t spike);
  void end_run();
  // Adds the time since the last step, except what account() has added, to the time of saving.
  void account_final_save();
  // Returns the progress after `step`, the last judged step.
  Progress progress_after(int64_t step) const;

  const RunParts parts_;
  nlohmann::json loader_state_;  // Loader state after the last judged step.
  Progress good_;                // Progress before the steps that were skipped in a row.
  std::string rolled_back_to_;   // Checkpoint of the last rollback.
  int64_t rollbacks_ = 0;        // Number of consecutive rollbacks to that checkpoint.
  std::chrono::steady_clock::time_point last_result_ = std::chrono::steady_clock::now();
  double accounted_s_ = 0;  // Time between steps that account() has added, in seconds.
};

}  // namespace octavo

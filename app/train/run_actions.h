// Performs what decide() decides after a step: saves, rollbacks, changes of the precision, the end of the run.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

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

// The parts of a run, owned by the trainer.
struct RunParts {
  const Config& config;
  Runtime& runtime;
  MemoryCheckpoints& memory_checkpoints;
  TrainingRun& run;
  Validator* validator;  // Null without data.validation.
  StepGuard& guard;
  PrecisionComparison& comparison;
  StepLog& log;
  Goodput& goodput;
};

// perform() is a collective, and the other methods are not.
class RunActions {
 public:
  explicit RunActions(const RunParts& parts);

  // Returns the step that the run continues after, or nothing if the run has ended. Throws AgreedError if it gives up.
  std::optional<int64_t> perform(const Actions& actions, const Facts& facts, int64_t step);

  // Called when the state after `step`, the last one judged, is the one to save if the run gives up.
  void remember_good_state(int64_t step) { good_ = progress_after(step); }
  // Called with each step that is judged: the state of the loader belongs to the state of the run after the step.
  void set_loader_state(nlohmann::json state) { loader_state_ = std::move(state); }
  // Counts the time since `begin`, in which the device did no step, as `use`.
  void account(Goodput::Use use, std::chrono::steady_clock::time_point begin);
  // Returns the time that account() has counted since the last call.
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
  // Returns the progress after `step`, the last one judged.
  Progress progress_after(int64_t step) const;

  const RunParts parts_;
  nlohmann::json loader_state_;  // After the last step judged.
  Progress good_;                // Before the steps that are skipped in a row.
  std::string rolled_back_to_;   // The checkpoint that the run rolled back to last,
  int64_t rollbacks_ = 0;        // and how often in a row.
  double accounted_s_ = 0;       // Time between steps that account() has counted.
};

}  // namespace octavo

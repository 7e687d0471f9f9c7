// Performs the actions that decide() returns after a step: saves, comparisons of precisions, and the end of the job.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "app/process/signals.h"
#include "app/train/decide.h"
#include "app/train/precision_comparison.h"
#include "app/train/session.h"
#include "app/train/training.h"

namespace octavo {

// perform() is a collective. The other methods are not.
class RunActions {
 public:
  // Requires: the arguments outlive the object.
  RunActions(Session& session, Training& training, PrecisionComparison& comparison);

  // Performs the actions after `step`. Returns the outcome of the job if they end it, or nothing if it continues.
  // Throws an ErrorOfAllRanks if the run gives up.
  std::optional<Outcome> perform(const Actions& actions, const Facts& facts, int64_t step, const StopSignals& signals);

  // Records that the state after `step`, the last judged step, is the state to save if the run gives up.
  void remember_good_state(int64_t step) { good_ = progress_after(step); }
  // Sets the state of the loader after the last judged step.
  void set_loader_state(nlohmann::json state) { loader_state_ = std::move(state); }
  // Records the loss of the last step.
  void set_last_loss(double loss) { last_loss_ = loss; }
  // Records the current time as the end of the last step.
  void note_result() { last_result_ = std::chrono::steady_clock::now(); }
  void write_goodput(bool end);

 private:
  void say(Notice notice, const Facts& facts, int64_t step) const;
  void save(Save which, int64_t step);
  [[noreturn]] void refuse_final_save(int64_t step);
  [[noreturn]] void give_up(int64_t step);
  Outcome roll_back_to_checkpoint(int64_t spike);
  Outcome fall_back_to_bfloat16();
  Outcome return_to_fp8(int64_t step);
  Outcome end_job(bool stopped, int64_t step, const StopSignals& signals);
  void await_command(const StopSignals& signals);
  // Adds the time since the last step, except what Session::account() has added, to the time of saving.
  void account_final_save();
  // Returns the progress after `step`, the last judged step.
  Progress progress_after(int64_t step) const;

  Session& session_;
  Training& training_;
  PrecisionComparison& comparison_;
  ProcessGroup& group_;
  nlohmann::json loader_state_;  // Loader state after the last judged step.
  Progress good_;                // Progress before the steps that were skipped in a row.
  double last_loss_ = std::numeric_limits<double>::quiet_NaN();
  std::chrono::steady_clock::time_point last_result_ = std::chrono::steady_clock::now();
};

}  // namespace octavo

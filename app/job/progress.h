// Progress is how far a run has come. A checkpoint contains tensors, the config of its run, and the progress.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/config/stages.h"
#include "checkpoint/checkpoint.h"

namespace octavo {

// The part of the state after a step that is not on the device.
struct Progress {
  int64_t step = 0;                           // Number of completed steps.
  int64_t tokens = 0;                         // Number of tokens that all ranks have trained on.
  double steps_s = 0;                         // Time of the steps in seconds.
  nlohmann::json loader_state = {};           // Result of Loader::state_json(). Null at the beginning of the data.
  nlohmann::json guard = {};                  // Result of StepGuard::to_json().
  int64_t bfloat16_until = 0;                 // Last step of a fallback from FP8 to bfloat16. 0 if there is none.
  std::vector<SampleRange> rolled_back = {};  // Samples that rollbacks skip, in addition to data.skip.
  // Value of checkpoint.resume with which the run began, if it was a path. Each checkpoint passes it on to the next
  // one.
  std::string began_from = {};
  nlohmann::json hugging_face = {};  // Value of kHfMetaKey. Null if the run began from random weights.

  friend bool operator==(const Progress&, const Progress&) = default;
};

// Returns the progress that a checkpoint records. An imported model has trained on no tokens and has no loader state.
// Throws an InputError that names the checkpoint and the key if the value of a key is wrong.
Progress progress_of(const Checkpoint& checkpoint);

// Returns Progress::began_from of the run that saved a checkpoint with the metadata `meta`. Empty if the run began with
// step 1.
std::string recorded_beginning(const nlohmann::json& meta);

// Returns the metadata of a checkpoint, in which progress_of() finds everything but the step. `run` is the config of
// the whole run, whose keys may be auto.
nlohmann::json checkpoint_meta(const Config& run, const Progress& progress);
nlohmann::json checkpoint_meta(const StageConfig& stage, const Progress& progress) = delete;

}  // namespace octavo

// The checkpoints of a run: what each rank writes of them, when one is due, and which is the last.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/run/runtime.h"
#include "app/run/training_state.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_writer.h"

namespace octavo {

// The weights, the optimizer's states and the amax history of a checkpoint into `state`, whose model it must be of.
// What is read is to be used once all ranks are known to have read without fault (ProcessGroup::agree), and the weights
// published then (publish_weights).
void load_state(Checkpoint& checkpoint, TrainingState& state, Stream& stream);

// Every method but the accessors is a collective.
class RunCheckpoints {
 public:
  // Opens config.checkpoint.dir for writing. All three must outlive the object.
  RunCheckpoints(const Config& config, Runtime& runtime, TrainingState& state);

  // The one that the run goes on from, on every rank the same; none where it begins anew. Nothing of it is loaded.
  std::optional<Checkpoint> open() const;
  // That the run went on from `checkpoint`, or began anew (null): it is the last one until another is saved. Not a
  // collective.
  void started_from(const Checkpoint* checkpoint);
  // Memory for copies; InputError where the machine has too little.
  void reserve_staging();

  // Whether one is to be saved after this step, which is not the last.
  bool due(int64_t step) const;
  // Starts the checkpoint of `step` from the state as it is on the stream (CheckpointWriter::save).
  void save(int64_t step, const nlohmann::json& meta);
  // Completes a save on its way if all ranks have written their parts.
  void poll();
  // Waits for it and completes it.
  void finish() { writer_.finish(); }
  // The same after a failure that all ranks share, which matters more than that of a save.
  void complete_pending_save();
  // The last one that is complete, saved by this run or gone on from; opened on every rank.
  std::optional<std::filesystem::path> last_path() const;
  Checkpoint open_last() const;
  // Its path, or "none", for messages.
  std::string last() const;

 private:
  void carry_tokenizer(const Checkpoint* resumed);
  std::vector<CheckpointTensor> pieces() const;  // what this rank writes

  const Config& config_;
  Runtime& runtime_;
  TrainingState& state_;
  CheckpointWriter writer_;
  std::optional<std::filesystem::path> resumed_;
};

}  // namespace octavo

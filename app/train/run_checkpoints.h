// The checkpoints of a run: what each rank writes of them, when one is due, and which is the last.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/process/runtime.h"
#include "app/run/training_state.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/machine_memory.h"

namespace octavo {

// The weights, the optimizer's states and the amax history of a checkpoint into `state`, whose model it must be of.
// What is read is to be used once all ranks are known to have read without fault (ProcessGroup::agree), and the weights
// published then (publish_weights).
void load_state(Checkpoint& checkpoint, TrainingState& state, Stream& stream);

// Returns the parts of a checkpoint that load_state() reads on this rank, in what the checkpoint has of them.
std::vector<TensorPart> loaded_parts(TrainingState& state);
// Returns the same before there is a state. They do not depend on what a stage can change.
std::vector<TensorPart> loaded_parts(const Config& config, Runtime& runtime);

// Every method but the accessors is a collective. A save that fails (a full disk, an I/O error, a directory that is
// gone) leaves nothing behind and is a warning of rank 0's; the next one that is due tries again.
// checkpoint.max_failed_saves of them in a row are an Error, and so is the failure of the run's final save.
class RunCheckpoints {
 public:
  // Opens config.checkpoint.dir for writing. Both must outlive the object.
  RunCheckpoints(const Config& config, Runtime& runtime);

  // Returns the checkpoint to resume, equal on all ranks, or nothing if the run begins. Of checkpoints on disk and in
  // memory auto takes the newer. The parts that this rank needs are compared with their checksums.
  std::optional<Checkpoint> open(std::span<const TensorPart> needed);
  // Returns the newest undamaged checkpoint that this run saved, or else the one that it resumed, if any. A save on its
  // way is completed first.
  std::optional<Checkpoint> open_last(std::span<const TensorPart> needed);
  // That the run went on from `checkpoint`, or began anew (null): it is the last one until another is saved. Not a
  // collective.
  void started_from(const Checkpoint* checkpoint);
  // Saves `state` from now on, which must outlive all saves. Reserves memory for copies of it, InputError where the
  // machine has too little. Looks whether the disk has room for the checkpoints after `start_step` and up to
  // `last_step`, InputError where not even one fits, a warning where some do not.
  void prepare(TrainingState& state, int64_t start_step, int64_t last_step);
  // Called when nothing can refuse the start any more. Moves checkpoints of a run that this one does not resume to a
  // directory of their own, and frees what an earlier start left in memory, unless this run resumed it.
  void leave_other_runs();

  // Whether checkpoint.every asks for a checkpoint after this step.
  bool due(int64_t step) const;
  // Whether checkpoint.every_minutes have passed on rank 0 since the last save began or restart_clock() was called.
  // False on other ranks. Not a collective.
  bool has_time_passed() const;
  void restart_clock() { last_begun_ = std::chrono::steady_clock::now(); }
  // Whether checkpoint.in_memory_every asks for one in memory after this step, and no earlier one is being written.
  bool due_in_memory(int64_t step) const;
  // Whether a checkpoint is being written to disk. Equal on all ranks.
  bool pending() const { return writer_.pending(); }
  // Gives a checkpoint that is being written two seconds to become complete.
  void wait_briefly();
  // Starts the checkpoint of `step` from the state as it is on the stream (CheckpointWriter::save). The final one is
  // the last that the run saves. One in memory that fails is a warning and nothing more.
  enum class Save { kOneOfMany, kFinal, kInMemory };
  void save(int64_t step, const nlohmann::json& meta, Save which = Save::kOneOfMany);
  // Reached when the last save has copied the state: weights and optimizer states stay as they are until then, beside
  // which a step's forward and backward may run. Not a collective.
  const Event& staged() const { return saves_in_memory_ ? memory_writer_->staged() : writer_.staged(); }
  // Completes a save on its way if all ranks have written their parts.
  void poll();
  // Waits for it and completes it.
  void finish();
  // Frees what is in memory. Called when the run or stage ends by itself, with all that it did on disk.
  void free_memory();
  // The same after a failure that all ranks share, which matters more than that of a save.
  void complete_pending_save();
  // The step of the last complete checkpoint on disk that this run saved or started from; 0 for none.
  int64_t saved_step() const { return saved_step_; }
  // The last one that is complete, saved by this run or gone on from.
  std::optional<std::filesystem::path> last_path() const;
  // Its path, or "none", for messages.
  std::string last() const;

 private:
  void carry_tokenizer(const Checkpoint* resumed);
  void reserve_staging();
  void open_memory(const std::filesystem::path& directory);
  std::filesystem::path left_memory();
  void drop_left_memory();
  void replace_left_memory();
  void check_memory();
  void reserve_memory();
  void carry_in_memory();
  std::string mark_of(const std::optional<std::filesystem::path>& checkpoint);
  std::optional<Checkpoint> newer_in_memory(std::span<const TensorPart> needed);
  void attempt_in_memory(const std::function<void()>& work);
  void check_room(int64_t start_step, int64_t last_step);
  void move_other_runs() const;
  int64_t checkpoints_to_come(int64_t start_step, int64_t last_step, int64_t there) const;
  std::vector<CheckpointTensor> pieces() const;  // what this rank writes
  // A part of a save; its failure, where all ranks share it, is counted.
  void attempt(const std::function<void()>& work);
  void report_saved();
  void count_failure(const std::string& reason);
  std::string room() const;  // for messages: what a checkpoint takes, and what is free

  const Config& config_;
  Runtime& runtime_;
  TrainingState* state_ = nullptr;
  CheckpointWriter writer_;
  // With checkpoint.in_memory: between open() and prepare() only where the run goes on from what is in memory.
  std::optional<MachineMemory> memory_;
  std::optional<CheckpointWriter> memory_writer_;
  bool saves_in_memory_ = false;  // as the last save
  bool from_memory_ = false;      // what open() found
  bool warned_of_memory_ = false;
  std::optional<std::filesystem::path> marked_;  // on disk, of which mark_ is
  std::string mark_;
  std::vector<CarriedFile> tokenizer_files_;
  std::optional<std::filesystem::path> resumed_;
  int64_t bytes_ = 0;  // of the tensors of a checkpoint
  int64_t saving_step_ = 0;
  int64_t saved_step_ = 0;
  Save saving_ = Save::kOneOfMany;
  int64_t failed_saves_ = 0;  // in a row
  std::chrono::steady_clock::time_point last_begun_ = std::chrono::steady_clock::now();
};

}  // namespace octavo

// Manages the checkpoints of a run on disk: decides when one is due, saves and opens them, and handles failed saves.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "app/config/config.h"
#include "app/process/runtime.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_format.h"
#include "checkpoint/checkpoint_writer.h"

namespace octavo {

// Directories that a run creates. The destructor removes those that are still empty, so that a start that is refused
// leaves nothing behind.
class CreatedDirectories {
 public:
  // Records which directories of the path `dir` do not exist on rank 0, before any rank creates them. A collective.
  CreatedDirectories(const std::filesystem::path& dir, ProcessGroup& group);
  ~CreatedDirectories();
  CreatedDirectories(const CreatedDirectories&) = delete;
  CreatedDirectories& operator=(const CreatedDirectories&) = delete;

 private:
  std::vector<std::filesystem::path> missing_;  // Directories that did not exist, the innermost first.
};

// Returns whether the final save of a run replaces a pending save of `step`, which is then abandoned. A pending save is
// needed if its checkpoint is kept forever (checkpoint.keep_every), or if there is no complete checkpoint to fall back
// to until the final save is complete.
bool final_save_replaces(int64_t step, int64_t keep_every, bool has_complete_checkpoint);

// Every method is a collective, unless it is const or its comment says otherwise. If a save fails (a full disk, an I/O
// error, a removed directory), its files are removed, rank 0 logs a warning, and the next due save tries again. An
// Error is thrown if checkpoint.max_failed_saves saves in a row fail, or if the final save of the run fails.
class DiskCheckpoints {
 public:
  // Opens config.checkpoint.dir for writing.
  // Requires: `config` and `runtime` outlive the object.
  DiskCheckpoints(const Config& config, Runtime& runtime);

  // Returns the path of the checkpoint on disk that the run would resume if none were damaged (path_to_resume), without
  // reading the checkpoint.
  std::optional<std::filesystem::path> newest();
  // Returns the checkpoint to resume, which is the same on all ranks, or nothing if the run starts from step 0.
  // Verifies the checksums of the parts in `needed` on each rank. If `verifies_newest` is false, the caller verifies
  // the parts of the newest or named checkpoint as it loads them (open_checkpoint_to_resume).
  std::optional<Checkpoint> open(std::span<const TensorPart> needed, bool verifies_newest = true);
  // Returns the newest undamaged checkpoint that this run saved, or else the checkpoint that it resumed, if any.
  // Completes a pending save first.
  std::optional<Checkpoint> open_last(std::span<const TensorPart> needed);
  // Sets the newest checkpoint on disk of a run that resumes a checkpoint in memory. Not a collective.
  void set_resumed_on_disk(std::optional<std::filesystem::path> newest) { resumed_ = std::move(newest); }
  // Sets the files that checkpoints contain besides tensors. Only rank 0's files are written. Not a collective.
  void attach(std::vector<AttachedFile> files) { writer_.attach(std::move(files)); }
  // Reserves host memory for staging `pieces`, the tensors that this rank saves. Throws an InputError if the machine
  // has too little memory. Also checks the free disk space for the checkpoints between `start_step` and `last_step`.
  // Throws an InputError if not even one fits, and warns if not all fit that will exist at the same time.
  void prepare(std::span<const CheckpointTensor> pieces, int64_t start_step, int64_t last_step);
  // Moves checkpoints that this run does not continue to a separate directory.
  // Requires: all checks of the start have passed.
  void set_other_runs_aside();

  // Returns whether checkpoint.every requests a checkpoint after this step.
  bool due(int64_t step) const;
  // Returns whether checkpoint.every_minutes have passed since the last save began or since restart_clock(). Only rank
  // 0 measures this; other ranks return false.
  bool has_time_passed() const;
  void restart_clock() { last_begun_ = std::chrono::steady_clock::now(); }
  // Returns whether a checkpoint is being written. The result is the same on all ranks.
  bool pending() const { return writer_.pending(); }
  // Returns whether a save would start at once (CheckpointWriter::ready). The result is the same on all ranks.
  bool ready() const { return writer_.ready(); }
  // Returns the name of the directory that is being written, or an empty text.
  std::string pending_name() const { return pending() ? step_directory_name(saving_step_) : ""; }
  // Records whether a due save has been postponed and not made yet. Not a collective.
  void set_postponed(bool postponed) { postponed_ = postponed; }
  bool is_postponed() const { return postponed_; }
  // Waits up to a quarter of a second until ready().
  void wait_briefly();
  // Starts the checkpoint of `step` with the state that all work queued so far computes (CheckpointWriter::save). The
  // final save abandons a pending save that it replaces. Any other pending save is completed first.
  void save(int64_t step, const nlohmann::json& meta, std::span<const CheckpointTensor> pieces, bool is_final);
  // Returns the point at which the last save has copied the state. Until this point the weights and optimizer states
  // must not change, but forward and backward of the next step may run.
  const PiecesRead& staged() const { return writer_.staged(); }
  // Completes a pending save if all ranks have written their parts, and updates ready().
  void poll();
  // Waits for a pending save and completes it.
  void finish();
  // Waits for a pending save and completes it. A failure of the save is only logged and does not count.
  void complete_pending_save();
  // Returns the step of the last complete checkpoint that this run saved or resumed. 0 if there is none.
  int64_t saved_step() const { return saved_step_; }
  // Returns the steps of the saves that were completed since the last call, in order. Not a collective.
  std::vector<int64_t> take_completed() { return std::exchange(completed_, {}); }
  // Returns the path of the checkpoint of saved_step(), or nothing if there is none.
  std::optional<std::filesystem::path> last_path() const;
  // Returns the text of last_path() for messages, or "none".
  std::string last() const;

 private:
  std::optional<Checkpoint> resume(const CheckpointConfig& config, std::span<const TensorPart> needed,
                                   bool verifies_newest);
  void reserve_staging(std::span<const CheckpointTensor> pieces);
  void check_free_space(int64_t start_step, int64_t last_step);
  void move_other_runs() const;
  int64_t checkpoints_to_come(int64_t start_step, int64_t last_step, int64_t there) const;
  // Runs `work`, a part of a save, and counts a failure on all ranks.
  void attempt(const std::function<void()>& work);
  void make_way_for_final_save(int64_t step);
  void report_saved();
  void count_failure(const std::string& reason);
  // Describes the size of a checkpoint and the free disk space.
  std::string describe_space() const;

  const Config& config_;
  Runtime& runtime_;
  CreatedDirectories directories_;
  CheckpointWriter writer_;
  std::optional<std::filesystem::path> resumed_;
  int64_t bytes_ = 0;  // Size of the tensors of a checkpoint, summed over all ranks.
  int64_t saving_step_ = 0;
  int64_t saved_step_ = 0;
  std::vector<int64_t> completed_;  // Steps that take_completed() returns.
  bool postponed_ = false;
  bool is_final_ = false;     // Whether the last save that began is the final save of the run.
  int64_t failed_saves_ = 0;  // Number of failed saves in a row.
  std::chrono::steady_clock::time_point last_begun_ = std::chrono::steady_clock::now();
};

}  // namespace octavo

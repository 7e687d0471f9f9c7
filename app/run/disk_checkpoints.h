// The checkpoints of a run on disk: when one is due, which is the last, and what follows a save that fails.
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

// Directories that are made for a run. The destructor removes them, unless something is in them: a start that is
// refused leaves nothing behind.
class MadeDirectories {
 public:
  // Notes which directories of the path `dir` are missing on rank 0, before any rank makes them. A collective.
  MadeDirectories(const std::filesystem::path& dir, ProcessGroup& group);
  ~MadeDirectories();
  MadeDirectories(const MadeDirectories&) = delete;
  MadeDirectories& operator=(const MadeDirectories&) = delete;

 private:
  std::vector<std::filesystem::path> missing_;  // The innermost first.
};

// Every method is a collective, unless it is const or says otherwise. A save that fails (a full disk, an I/O error, a
// directory that is gone) leaves nothing behind and is a warning of rank 0; the next one that is due tries again.
// checkpoint.max_failed_saves of them in a row are an Error, and so is the failure of the run's final save.
class DiskCheckpoints {
 public:
  // Opens config.checkpoint.dir for writing. Both must outlive the object.
  DiskCheckpoints(const Config& config, Runtime& runtime);

  // Returns the path of the newest checkpoint in checkpoint.dir, of which nothing is read.
  std::optional<std::filesystem::path> newest();
  // Returns the checkpoint to resume, equal on all ranks, or nothing if the run begins. The parts that this rank needs
  // are compared with their checksums.
  std::optional<Checkpoint> open(std::span<const TensorPart> needed);
  // Returns the newest undamaged checkpoint that this run saved, or else the one that it resumed, if any. A save on its
  // way is completed first.
  std::optional<Checkpoint> open_last(std::span<const TensorPart> needed);
  // Makes `newest` the checkpoint that the run resumed, as it resumes a later one in memory. Not a collective.
  void resume_behind(std::optional<std::filesystem::path> newest) { resumed_ = std::move(newest); }
  // Sets the files that checkpoints hold alongside the tensors. Those of rank 0 are written. Not a collective.
  void carry(std::vector<CarriedFile> files) { writer_.carry(std::move(files)); }
  // Reserves memory for copies of `pieces`, which this rank saves. InputError where the machine has too little. Looks
  // whether the disk has room for the checkpoints after `start_step` and up to `last_step`: InputError where not even
  // one fits, a warning where some do not.
  void prepare(std::span<const CheckpointTensor> pieces, int64_t start_step, int64_t last_step);
  // Moves checkpoints of a run that this one does not resume to a directory of their own. Called when nothing can
  // refuse the start any more.
  void leave_other_runs();

  // Whether checkpoint.every asks for a checkpoint after this step.
  bool due(int64_t step) const;
  // Whether checkpoint.every_minutes have passed on rank 0 since the last save began or restart_clock() was called.
  // False on other ranks.
  bool has_time_passed() const;
  void restart_clock() { last_begun_ = std::chrono::steady_clock::now(); }
  // Whether a checkpoint is being written. Equal on all ranks.
  bool pending() const { return writer_.pending(); }
  // Name of the directory that is being written. Empty if none is.
  std::string pending_name() const { return pending() ? step_directory_name(saving_step_) : ""; }
  // Gives a checkpoint that is being written two seconds to become complete.
  void wait_briefly();
  // Starts the checkpoint of `step` from the state as it is on the stream (CheckpointWriter::save).
  void save(int64_t step, const nlohmann::json& meta, std::span<const CheckpointTensor> pieces, bool is_final);
  // Reached when the last save has copied the state. Until then the weights and optimizer states must not change, while
  // a step's forward and backward may run.
  const Event& staged() const { return writer_.staged(); }
  // Completes a save on its way if all ranks have written their parts.
  void poll();
  // Waits for a save on its way and completes it.
  void finish();
  // Does the same after a failure that all ranks share, which matters more than the failure of a save.
  void complete_pending_save();
  // The step of the last complete checkpoint that this run saved or resumed. 0 for none.
  int64_t saved_step() const { return saved_step_; }
  // The path of the last complete checkpoint that this run saved or resumed.
  std::optional<std::filesystem::path> last_path() const;
  // Its path, or "none", for messages.
  std::string last() const;

 private:
  std::optional<Checkpoint> resume(const CheckpointConfig& config, std::span<const TensorPart> needed);
  void reserve_staging(std::span<const CheckpointTensor> pieces);
  void check_room(int64_t start_step, int64_t last_step);
  void move_other_runs() const;
  int64_t checkpoints_to_come(int64_t start_step, int64_t last_step, int64_t there) const;
  // Does a part of a save. A failure that all ranks share is counted.
  void attempt(const std::function<void()>& work);
  void report_saved();
  void count_failure(const std::string& reason);
  // Describes what a checkpoint takes and what is free.
  std::string room() const;

  const Config& config_;
  Runtime& runtime_;
  MadeDirectories directories_;
  CheckpointWriter writer_;
  std::optional<std::filesystem::path> resumed_;
  int64_t bytes_ = 0;  // Size of the tensors of a checkpoint, of all ranks.
  int64_t saving_step_ = 0;
  int64_t saved_step_ = 0;
  bool is_final_ = false;     // Whether the last save is the final one.
  int64_t failed_saves_ = 0;  // In a row.
  std::chrono::steady_clock::time_point last_begun_ = std::chrono::steady_clock::now();
};

}  // namespace octavo

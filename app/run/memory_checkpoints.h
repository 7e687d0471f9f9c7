// Keeps the newest state of a run in host memory that outlives the processes (checkpoint/machine_memory.h), so that a
// restart can resume without reading the disk. Without checkpoint.in_memory, it only frees what an earlier start left
// in memory.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/process/runtime.h"
#include "app/run/disk_checkpoints.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/machine_memory.h"

namespace octavo {

// Every method that is not const is a collective. The first failed save is logged as a warning, and later ones are
// ignored.
class MemoryCheckpoints {
 public:
  // Requires: `config` and `runtime` outlive the object.
  MemoryCheckpoints(const Config& config, Runtime& runtime) : config_(config), runtime_(runtime) {}

  // Returns the checkpoint in memory if the run saved it after `newest_on_disk`, and nothing otherwise. If
  // checkpoint.resume is a path, the run must also have begun at that path. Reads only the manifest of
  // `newest_on_disk`. Fetches the parts in `needed` from other machines if necessary.
  std::optional<Checkpoint> open(const std::optional<std::filesystem::path>& newest_on_disk,
                                 std::span<const TensorPart> needed);
  // Sets the content of the checkpoints: `pieces`, the tensors that this rank saves, and the `files` of rank 0. Throws
  // an InputError if the machine has too little memory.
  void prepare(std::span<const CheckpointTensor> pieces, const std::vector<AttachedFile>& files);
  // Frees what an earlier start left in memory and reserves memory for this run, unless the run resumed that state.
  // Requires: prepare() was called, and all checks of the start have passed.
  void begin();

  // Returns whether checkpoint.in_memory_every requests a checkpoint after this step and a save would start at once
  // (CheckpointWriter::ready).
  bool due(int64_t step) const;
  // Starts the checkpoint of `step` (CheckpointWriter::save). Its manifest names the last and the pending save of
  // `on_disk`.
  void save(int64_t step, nlohmann::json meta, std::span<const CheckpointTensor> pieces,
            const DiskCheckpoints& on_disk);
  // Returns the point at which the last save has copied the state.
  // Requires: an earlier save().
  const PiecesRead& staged() const { return writer_->staged(); }
  // Makes the host wait until the last save, if any, has copied the state.
  void wait_until_staged() const {
    if (writer_) writer_->staged().wait();
  }
  // Completes a pending save if all ranks have written their parts, and updates due().
  void poll();
  // Completes a pending save, then frees the memory.
  // Requires: the final state of the run or stage is on disk.
  void free();
  // Discards the saved state and reserves memory again, for a run that rolls back to an earlier state.
  void discard();

 private:
  std::filesystem::path left_directory();
  void use(const std::filesystem::path& directory);
  void free_left();
  void check_memory();
  void reserve();
  std::string mark_of(const std::optional<std::filesystem::path>& checkpoint);
  void attempt(const std::function<void()>& work);

  const Config& config_;
  Runtime& runtime_;
  std::optional<MachineMemory> memory_;     // Set by begin(), or by open() if the run resumes a checkpoint in memory.
  std::optional<CheckpointWriter> writer_;  // Writes to memory_.
  int64_t bytes_ = 0;                       // Size of this rank's pieces in bytes.
  std::vector<AttachedFile> files_;
  std::optional<std::filesystem::path> marked_;  // Checkpoint on disk that mark_ identifies.
  std::string mark_;
  bool warned_ = false;
};

}  // namespace octavo

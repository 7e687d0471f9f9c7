// The newest state of a run in the memory of its machines (checkpoint/machine_memory.h), which a restart resumes
// without reading a disk. Does nothing without checkpoint.in_memory, except that it frees what an earlier start left.
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

// Every method but due() and staged() is a collective. A save that fails is a warning, said once, and nothing more.
class MemoryCheckpoints {
 public:
  // Both must outlive the object.
  MemoryCheckpoints(const Config& config, Runtime& runtime) : config_(config), runtime_(runtime) {}

  // Returns the checkpoint in memory that the run saved after the newest one on disk, if any. Of that one only the
  // manifest is read. Fetches the parts that this rank needs from other machines.
  std::optional<Checkpoint> open(const std::optional<std::filesystem::path>& newest_on_disk,
                                 std::span<const TensorPart> needed);
  // Sets what a checkpoint holds: `pieces` of this rank, and rank 0's `files`. InputError where the machine has too
  // little memory.
  void prepare(std::span<const CheckpointTensor> pieces, const std::vector<CarriedFile>& files);
  // Called when nothing can refuse the start any more. Frees what an earlier start left, unless the run resumed it.
  void begin();

  // Whether checkpoint.in_memory_every asks for a checkpoint after this step, and no earlier one is being written.
  bool due(int64_t step) const;
  // Starts the checkpoint of `step`, and records the newest checkpoints on disk (CheckpointWriter::save).
  void save(int64_t step, nlohmann::json meta, std::span<const CheckpointTensor> pieces,
            const DiskCheckpoints& on_disk);
  // Reached when the last save has copied the state. Only after a save.
  const Event& staged() const { return writer_->staged(); }
  // Completes a save on its way if all ranks have written their parts.
  void poll();
  // Frees the memory. Called when all that the run or stage did is on disk.
  void free();
  // Discards what is saved, because the run rolls back to an earlier state. Collective.
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
  std::optional<MachineMemory> memory_;     // Set from begin() on, or from open() if the run resumes what is there.
  std::optional<CheckpointWriter> writer_;  // Writes to memory_.
  int64_t bytes_ = 0;                       // Size of this rank's pieces.
  std::vector<CarriedFile> files_;
  std::optional<std::filesystem::path> marked_;  // The checkpoint on disk that mark_ belongs to.
  std::string mark_;
  bool warned_ = false;
};

}  // namespace octavo

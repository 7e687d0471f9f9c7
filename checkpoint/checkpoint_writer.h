// Writes checkpoints (checkpoint/checkpoint_format.h) while training continues. save() copies the pieces that are not
// stable (CheckpointTensor) to staging memory. A thread copies the stable pieces from the GPU and writes all pieces.
// poll() completes the checkpoint when the threads of all ranks are done.
//
//   CheckpointWriter writer({.dir = "checkpoints", .keep = 3, .async = true}, group, stream);
//   every step:  writer.poll();
//   when due:    writer.save(step, model, meta, my_pieces);  // Waits for nothing if writer.ready().
//   at the end:  writer.finish();
//
// A crash at any moment leaves every complete checkpoint usable: pieces go to a temporary directory, which is renamed
// after everything in it is on disk. `dir` must be on a file system that all ranks share.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <future>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_format.h"
#include "checkpoint/directory_lock.h"
#include "checkpoint/machine_memory.h"
#include "core/staging_memory.h"
#include "core/stream.h"
#include "model/architecture/tensor_parallel.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

struct CheckpointOptions {
  std::string dir = "checkpoints";
  int64_t keep = 3;        // Number of newest complete checkpoints that stay after a save. 0 or less keeps all.
  bool async = true;       // Whether a thread writes in the background.
  int64_t keep_every = 0;  // Checkpoints whose steps are multiples of this number also stay. 0 disables it.
  // Object that distributes the shards if checkpoints are saved in the memory of the machines. Each machine then has
  // its own `dir` with the shards that it keeps. Borrowed. Null means that all ranks share one `dir`.
  MachineMemory* memory = nullptr;
};

// Part of a tensor, to be written by this rank.
struct CheckpointTensor {
  std::string name;
  std::vector<int64_t> shape;  // Shape of the whole tensor.
  int64_t begin = 0;           // Range of the flattened tensor, or of its flattened columns if there are any.
  int64_t end = 0;
  Tensor data;               // The elements [begin, end), on the stream's device. Borrowed until staged() is reached.
  ColumnRange columns = {};  // Columns of a 2-dimensional tensor. Empty means all.
  bool stable = false;       // Whether the data stays unchanged until CheckpointWriter::staged() is reached.
};

// Point at which the last save has read its stable pieces. On a GPU the writing thread copies them.
class PiecesRead {
 public:
  // Makes the host wait until the pieces are read.
  void wait() const noexcept { reached_.wait(false, std::memory_order_acquire); }

 private:
  friend class CheckpointWriter;

  std::atomic<bool> reached_{true};
};

// Returns part `index` of `count` of a list of tensors. The parts are contiguous, have equal numbers of bytes and may
// divide a tensor. Together they are the list. Each rank that holds the same tensors writes one part.
std::vector<CheckpointTensor> divide_tensors(std::span<const CheckpointTensor> tensors, int index, int count);

// Not movable. Every method except the accessors is a collective of `group`, called from the thread that owns it. If
// writing fails on any rank (a full disk), the method that detects the failure throws the same Error on every rank. The
// temporary directory is removed by then, earlier checkpoints are unharmed, and the writer may be used again. If an old
// checkpoint cannot be removed, rank 0 only warns. If no thread can be started, save() itself writes.
class CheckpointWriter {
 public:
  // Creates options.dir, locks it (checkpoint/directory_lock.h), repairs interrupted replacements and removes what
  // crashed runs left there. So look for a checkpoint to resume after this call. Throws an InputError if that is not
  // possible, or if another run holds the lock.
  // Requires: `group` and `stream` outlive the writer.
  CheckpointWriter(CheckpointOptions options, ProcessGroup& group, Stream& stream);
  // Waits for background work. A checkpoint that poll() or finish() has not completed is lost.
  ~CheckpointWriter();

  // Sets the files that are attached to every checkpoint in addition to its tensors. Rank 0's files are written. Not a
  // collective.
  void attach(std::vector<AttachedFile> files) { attached_ = std::move(files); }

  // Starts to prepare staging memory for pieces of `bytes` in total, in the background. Without this call the first
  // save() allocates it and waits. Does nothing if save() needs none. Not a collective.
  void reserve(int64_t bytes);
  static int64_t staging_bytes(std::span<const CheckpointTensor> pieces);

  // Starts (async) or completes (not async) the checkpoint of `step`, replacing an older one of that step. `pieces` are
  // those that this rank writes. Pieces are read in stream order, so work queued afterwards may change them. Stable
  // pieces are the exception: a GPU copies them concurrently with that work. On a GPU the host does not wait if
  // ready(). Otherwise an earlier pending save is completed first, and the host waits for staging memory and removals.
  // Requires: all ranks pass the same step, model and meta, and their pieces together cover every tensor once.
  void save(int64_t step, const ModelConfig& model, const nlohmann::json& meta,
            std::span<const CheckpointTensor> pieces);
  // Returns the point after which stable pieces may be changed: the last save has read its pieces.
  const PiecesRead& staged() const { return staged_; }
  // Completes the pending checkpoint if written(), and updates ready(). Returns true if none is pending any more. Costs
  // up to two small reductions over the ranks if not ready().
  bool poll();
  // Returns whether all ranks have written their pieces of the pending checkpoint, which is then quick to complete.
  bool written();
  // Waits for the pending checkpoint, if any, and completes it.
  void finish();
  // Stops writing the pending checkpoint and removes what was written of it.
  void abandon();

  // Waits until old checkpoints and the remains of crashed runs are removed, which happens in the background. Not a
  // collective.
  void wait_for_removals();

  // Returns whether save() copies the pieces into staging memory.
  bool stages() const { return options_.async || stream_.is_cuda(); }
  bool pending() const { return pending_; }
  // Returns whether save() would start at once on all ranks: no save is pending, and at the last poll() the staging
  // memory was prepared and old checkpoints were removed.
  bool ready() const { return !pending_ && ready_; }
  // Returns the seconds that this rank took to write the last save, from the copies in staging memory to the disk.
  double write_seconds() const { return write_seconds_; }
  // Returns the newest checkpoint that this writer completed.
  const std::optional<std::filesystem::path>& last_saved() const { return last_saved_; }

 private:
  void stage(std::span<const CheckpointTensor> pieces);
  void copy_stable_pieces();
  void run_write() noexcept;
  bool manages_directory() const { return options_.memory ? options_.memory->manages_directory() : group_.is_root(); }
  void write_shard();
  std::vector<std::span<const std::byte>> shard_parts() const;
  void commit();
  void gather_parts();
  void install();
  void prune(int64_t newest_step) const;
  void remove_in_background(const std::function<void()>& work);
  void discard() noexcept;

  CheckpointOptions options_;
  ProcessGroup& group_;
  Stream& stream_;
  StagingMemory staging_;
  // Lock, held by rank 0, or by one rank of each machine.
  std::optional<DirectoryLock> lock_;
  // Future of the removal of old checkpoints, which never runs during a save. Invalid if none is pending.
  std::future<void> removals_;
  std::vector<AttachedFile> attached_;
  // Stream for copies to staging memory that run concurrently with training.
  Stream copies_;
  Event begun_;        // Event after which data to be copied on copies_ is complete.
  PiecesRead staged_;  // Point after which the stable pieces are in staging memory.

  // The save in progress. The thread writes staged_, part_.shards, checksums, error_ and done_. Other threads wait for
  // done_ or join.
  bool pending_ = false;
  bool ready_ = false;
  CheckpointManifest part_;                    // Step, model, meta and this rank's pieces.
  std::vector<CheckpointTensor> pieces_;       // Pieces that were given to save(), in the order of the file.
  std::vector<CheckpointTensor> host_pieces_;  // pieces_ with their data in host memory.
  std::string shard_beginning_;                // Beginning of the shard file, before the data.
  std::filesystem::path temporary_;
  std::filesystem::path final_;
  double write_seconds_ = 0;
  std::exception_ptr error_;
  std::atomic<bool> done_{false};
  std::atomic<bool> stop_{false};  // Set to make the thread stop writing.
  std::thread thread_;
  std::optional<std::filesystem::path> last_saved_;
};

}  // namespace octavo

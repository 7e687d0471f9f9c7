// Writes checkpoints (checkpoint/checkpoint_format.h), without holding up training: save() copies this rank's pieces
// into staging memory, a thread writes them, poll() completes the checkpoint once every rank's thread is done.
//
//   CheckpointWriter writer({.dir = "checkpoints", .keep = 3, .async = true}, group, stream);
//   every step:  if (writer.pending()) writer.poll();
//   when due:    writer.save(step, model, meta, my_pieces);
//   at the end:  writer.finish();
//
// A crash at any moment leaves every complete checkpoint usable: pieces go to a temporary directory, which gets its
// name only after everything in it is on the disk. `dir` must be on a file system that all ranks share.
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
#include "model/column_range.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

struct CheckpointOptions {
  std::string dir = "checkpoints";
  int64_t keep = 3;        // complete checkpoints left after a save, the newest ones; 0 or less: all
  bool async = true;       // write in the background
  int64_t keep_every = 0;  // those of steps that are multiples of it are left too; 0: none
  // Of which `dir` is the directory: each machine has one, with the shards that it keeps. Borrowed; none: all ranks
  // share the directory.
  MachineMemory* memory = nullptr;
};

// A part of a tensor.
struct CheckpointTensor {
  std::string name;
  std::vector<int64_t> shape;  // of the whole tensor
  int64_t begin = 0;           // range of the flattened tensor, or of its flattened columns where there are some
  int64_t end = 0;
  Tensor data;               // those end - begin elements, on the stream's device; borrowed
  ColumnRange columns = {};  // of a 2-dimensional tensor; none: all of them
  bool stable = false;       // is changed only by work that is queued after CheckpointWriter::staged()
};

// Part `index` of `count` of the same list of tensors, cut by bytes into contiguous parts of equal size, also within a
// tensor. Together the parts are the list; each rank that holds the same tensors writes one of them.
std::vector<CheckpointTensor> divide_tensors(std::span<const CheckpointTensor> tensors, int index, int count);

// Not movable. Every method but the accessors is a collective of `group`, called from the thread that owns it. When
// writing fails on any rank (a full disk), the same Error is thrown on every rank, out of whichever method finds it;
// the temporary directory is gone by then, earlier checkpoints are whole, and the writer may be used on. An old
// checkpoint that cannot be removed is no failure: rank 0 warns. Where no thread can be started, save() itself writes.
class CheckpointWriter {
 public:
  // Creates options.dir, locks it (checkpoint/directory_lock.h) and clears away what crashed runs left there.
  // InputError when that is not possible, or another run holds the lock. `group` and `stream` must outlive the writer.
  // To resume, look for a checkpoint after this, which puts interrupted ones right.
  CheckpointWriter(CheckpointOptions options, ProcessGroup& group, Stream& stream);
  // Waits for the work in the background; a checkpoint not completed by poll() or finish() is lost.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // The files that every checkpoint carries beside its tensors; rank 0's are written. Not a collective.
  void carry(std::vector<CarriedFile> files) { carried_ = std::move(files); }

  // Begins to make staging memory for pieces of `bytes` in all, in the background. Without it, the first save() does,
  // and waits. Nothing where save() needs none. Not a collective.
  void reserve(int64_t bytes);
  static int64_t staging_bytes(std::span<const CheckpointTensor> pieces);

  // Starts (async) or completes (not async) the checkpoint of `step`, replacing an older one of that step. All ranks
  // pass the same step, model and meta, and each the pieces that it is to write, which together cover every tensor
  // once. Reads the pieces in stream order: work queued on the stream afterwards may change them, but for those that
  // are stable, which a GPU copies beside that work. On a GPU the host does not wait. An earlier save that is still
  // pending is completed first.
  void save(int64_t step, const ModelConfig& model, const nlohmann::json& meta,
            std::span<const CheckpointTensor> pieces);
  // Reached when the last save has read its pieces: before it no stable piece may be changed.
  const Event& staged() const { return staged_; }
  // Completes the pending checkpoint if all ranks have written their pieces. True when none is pending any more. Costs
  // one small reduction over the ranks.
  bool poll();
  // Waits for the pending checkpoint, if any, and completes it.
  void finish();

  // What is old, or was left behind by crashed runs, is removed in the background: waits until that is done. Not a
  // collective.
  void wait_for_removals();

  // Whether save() copies the pieces into staging memory.
  bool stages() const { return options_.async || stream_.is_cuda(); }
  bool pending() const { return pending_; }
  // What the writing of the last save took on this rank, from the copies in staging memory to the disk.
  double write_seconds() const { return write_seconds_; }
  // The newest checkpoint completed by this writer.
  const std::optional<std::filesystem::path>& last_saved() const { return last_saved_; }

 private:
  void stage(std::span<const CheckpointTensor> pieces);
  void run_write() noexcept;
  bool keeps_house() const { return options_.memory ? options_.memory->keeps_house() : group_.is_root(); }
  void write_shard();
  std::vector<std::span<const std::byte>> shard_parts() const;
  void commit();
  void gather_parts();
  void install();
  void prune(int64_t newest_step) const;
  void keep_house(const std::function<void()>& work);
  void discard() noexcept;

  CheckpointOptions options_;
  ProcessGroup& group_;
  Stream& stream_;
  StagingMemory staging_;
  // On the rank that keeps house: rank 0, or one of each machine.
  std::optional<DirectoryLock> lock_;
  std::future<void> housekeeping_;  // not beside a save; the last one is waited for
  std::vector<CarriedFile> carried_;
  Stream copies_;  // beside stream_
  Event begun_;    // when what is copied on copies_ is as it is to be saved
  Event staged_;   // reached when the pieces are in staging memory

  // The save in progress. The thread writes part_.shards, checksums, error_ and done_; others wait for done_ or join.
  bool pending_ = false;
  CheckpointManifest part_;                    // step, model, meta and this rank's pieces
  std::vector<CheckpointTensor> host_pieces_;  // data in host memory, ordered as written
  std::string shard_beginning_;                // what comes before them in the file
  std::filesystem::path temporary_;
  std::filesystem::path final_;
  double write_seconds_ = 0;
  std::exception_ptr error_;
  std::atomic<bool> done_{false};
  std::thread thread_;
  std::optional<std::filesystem::path> last_saved_;
};

}  // namespace octavo

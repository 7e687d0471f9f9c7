// The newest checkpoint of a run in the memory of its machines: files in shared memory, which outlive the processes. A
// machine has the shards of its ranks, a replica of the shards of another machine, and the manifest. So neither the end
// of the processes nor the loss of one machine loses a shard.
//
//   MachineMemory memory("/dev/shm/run", group);
//   CheckpointWriter writer({.memory = &memory}, group, stream);
//   after a restart: memory.bring_together(...)   // fetches the shards that are read on other machines
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "parallel/ranks/machines.h"
#include "parallel/ranks/process_group.h"
#include "parallel/ranks/rank_transfers.h"

namespace octavo {

// File in a directory of checkpoints with the name of the directory in shared memory that belongs to it.
inline constexpr const char* kMemoryIdFile = "memory_id";

// Returns the path in shared memory that belongs to `checkpoint_dir`, or an empty path if it has none. Throws an
// InputError if its kMemoryIdFile is invalid.
//
// The name of the directory is random and is stored in kMemoryIdFile. It includes the inode number of that file. So no
// other user can create the directory in advance, and a run folder that was removed and created again, a copy of it,
// and the equal path in another container each have a different directory. Only its user can open it. Because /dev/shm
// is sticky, nobody else can rename or remove it, and its contents were written by this user. So only the directory
// itself must be checked.
std::filesystem::path memory_directory(const std::filesystem::path& checkpoint_dir);
// Draws and stores a new name for `checkpoint_dir`. Returns the path, but does not create the directory.
std::filesystem::path renew_memory_directory(const std::filesystem::path& checkpoint_dir);
// Removes the stored name (kMemoryIdFile). Ignores errors.
void forget_memory_directory(const std::filesystem::path& checkpoint_dir);

// Makes the directory `path`, accessible to this user only. Throws an InputError if it cannot be made, or if the path
// exists and is not a directory (or is a link), belongs to another user, or is accessible to others.
void make_private_directory(const std::filesystem::path& path);

// Locks (checkpoint/directory_lock.h) and removes a directory that make_private_directory() made, if it exists. Warns
// and leaves it if it belongs to another user or a process uses it.
void remove_private_directory(const std::filesystem::path& path);

class MachineMemory {
 public:
  // Makes the directory `dir` on every machine (make_private_directory()). A collective. Throws an InputError if that
  // is not possible, or if there are several machines and MPI does not support several threads.
  // Requires: `group` outlives the object.
  MachineMemory(std::filesystem::path dir, ProcessGroup& group);
  // Removes the directory if it is empty.
  ~MachineMemory();

  // Returns whether this rank makes directories, writes manifests and removes files for its machine.
  bool manages_directory() const { return machines_.first_rank(machines_.of(group_.rank())) == group_.rank(); }
  // Returns whether this machine keeps the shard that `rank` writes.
  bool has_shard_of(int rank) const;

  // Sends this rank's shard to the machine that keeps its replica, and writes the shards that this rank keeps for
  // others into `directory` on this machine. `parts` are the bytes of this rank's shard, or null if writing it failed.
  // Throws an Error if something failed here or on a rank whose shard is kept here.
  // Requires: all ranks call this at the same time, from one thread each.
  void keep_copies(const std::filesystem::path& directory, const std::span<const std::span<const std::byte>>* parts);

  // Returns the newest checkpoint that the machines have between them and that is `wanted`, a condition on the manifest
  // that is equal on all ranks. Fetches the shards with the parts `needed` by this rank, and for rank 0 the files, from
  // other machines if this one lacks them, and compares the checksums of these parts. A checkpoint with a file that no
  // machine has in full length is skipped with a warning. A collective. Throws an InputErrorOfAllRanks if the
  // checkpoint is damaged.
  std::optional<Checkpoint> bring_together(const std::function<bool(const Checkpoint&)>& wanted,
                                           std::span<const TensorPart> needed);

 private:
  using Files = std::set<std::string>;

  // Calls `look` on one rank of each machine and returns the results.
  std::vector<Files> by_machine(const std::function<Files()>& look);
  // Returns the files of a checkpoint that each machine has in full length.
  std::vector<Files> files_by_machine(const Checkpoint& checkpoint);
  // Returns the name of the first file of the checkpoint that no machine has in full length, or an empty text.
  static std::string first_that_nobody_has(const Checkpoint& checkpoint, const std::vector<Files>& held);
  void fetch(const std::vector<Files>& held, const Checkpoint& checkpoint, const Files& needed);

  std::filesystem::path dir_;
  ProcessGroup& group_;
  Machines machines_;
  std::optional<RankTransfers> transfers_;  // Channel for transfers. Set if there are several machines.
};

}  // namespace octavo

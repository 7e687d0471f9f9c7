// The newest checkpoint of a run in the memory of its machines: in files without a disk, which outlive the processes. A
// machine has the shards of its ranks, a copy of those of another machine's, and a manifest of all, so that neither the
// death of a run nor the loss of one machine takes a shard away.
//
//   MachineMemory memory("/dev/shm/run", group);
//   CheckpointWriter writer({.memory = &memory}, group, stream);   // as of one directory that all ranks share
//   after a restart: memory.bring_together(...)                     // shards go to where they are to be read
#pragma once

#include <cstdint>
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

class MachineMemory {
 public:
  // `dir`: of this name on every machine, and each machine's own, which is made (make_private_directory()). A
  // collective; InputError where that is not possible, or where there are several machines and MPI is not for several
  // threads. `group` must outlive the object.
  MachineMemory(std::filesystem::path dir, ProcessGroup& group);
  // Removes the directory where nothing is in it.
  ~MachineMemory();
  MachineMemory(const MachineMemory&) = delete;
  MachineMemory& operator=(const MachineMemory&) = delete;

  const std::filesystem::path& dir() const { return dir_; }
  int machines() const { return machines_.count(); }
  // Whether this rank is the one of its machine that makes directories, writes manifests and clears away.
  bool keeps_house() const { return machines_.first_rank(machines_.of(group_.rank())) == group_.rank(); }
  // Whether the shard that `rank` writes comes to be on this machine.
  bool has_shard_of(int rank) const;

  // What this rank wrote into `directory`, to its keeper's machine; and into the same directory here what others have
  // kept on this machine. All ranks do this at once, from one thread each, also where the writing failed: `parts` is
  // null then. Error when something failed here or at a rank whose copy is kept here.
  void keep_copies(const std::filesystem::path& directory, const std::span<const std::span<const std::byte>>* parts);

  // The newest checkpoint that the machines have among them and `wanted` takes (by its manifest alone, the same on
  // every rank); none where there is none. The shards with the parts `needed` by this rank, and for rank 0 the files,
  // are fetched from other machines where this one lacks them; then each rank compares the checksums of its parts. A
  // collective; AgreedInputError where it is damaged.
  std::optional<Checkpoint> bring_together(const std::function<bool(const Checkpoint&)>& wanted,
                                           std::span<const TensorPart> needed);
  // Removes the directory with all that is in it. Called by every rank.
  void remove() const;

 private:
  struct Held;
  std::vector<Held> held_by_machine();
  ManifestFile manifest_of(const std::vector<Held>& held, int64_t step);
  void fetch(const std::vector<Held>& held, const Checkpoint& checkpoint, const std::set<std::string>& needed);

  std::filesystem::path dir_;
  ProcessGroup& group_;
  Machines machines_;
  std::optional<RankTransfers> transfers_;  // where there are several machines
};

}  // namespace octavo

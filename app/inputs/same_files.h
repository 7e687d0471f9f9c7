// Ensures that all ranks read the same files. Rank 0 decides which files are read, and the other ranks compare what
// they see before anything is computed. A rank may see different files under the same path (a relative path, a local
// disk, a stale mount), and would silently train with other weights or tokens.
//
// All functions are collectives unless they say otherwise. If a rank sees different files, every rank throws an
// InputError that names the rank, the path, and what that rank and rank 0 found there.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/inputs/model_path.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/weight_source.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

// Calls `find` on rank 0 and returns its result on every rank. `what` names the work in messages.
std::string found_by_root(const char* what, ProcessGroup& group, const std::function<std::string()>& find);

// Calls `look` on every rank. Returns the message of the DamagedCheckpoint on the lowest rank that throws one, or an
// empty text. `what` names the work in messages.
std::string damage_found(const char* what, ProcessGroup& group, const std::function<void()>& look);

// Returns the path of the checkpoint that checkpoint.resume names (resolve_checkpoint), or with auto the path of the
// newest one in checkpoint.dir. Empty if there is none. Not a collective.
std::string path_to_resume(const CheckpointConfig& config);

// Checks that a checkpoint has everything that a run needs to resume. Its manifest must list all weights of its model
// with their shapes. Unless the checkpoint is an imported model, it must also list what a run saves: the optimizer
// states, the config and the loader state. Throws a DamagedCheckpoint that names the manifest. Does not check whether
// model and data are those of the current run, and reads no shard. Not a collective.
void check_resumable(const Checkpoint& checkpoint);

// Opens the checkpoint at path_to_resume(), or returns nothing if there is none. Its checksums are compared later, when
// it is read.
std::optional<Checkpoint> open_run_checkpoint(const CheckpointConfig& config, ProcessGroup& group);

// Returns the checkpoint that a run resumes, or nothing if there is none. The checkpoint has everything that a run
// needs (check_resumable). Each rank verifies the checksums of the parts in `needed`, and rank 0 those of the other
// files. With auto, this is the newest checkpoint in which no rank finds damage, such as a missing manifest. Newer
// damaged checkpoints are skipped with a warning, and renamed (kDamagedPrefix) if `renames` is true. If all checkpoints
// are damaged, nothing is renamed and an InputError is thrown. If `verifies_newest` is false, the tensors of the newest
// or named checkpoint are not verified, because the caller verifies them as it loads them.
// Requires: the run has locked checkpoint.dir, if `renames` is true.
std::optional<Checkpoint> open_checkpoint_to_resume(const CheckpointConfig& config, std::span<const TensorPart> needed,
                                                    ProcessGroup& group, bool renames = true,
                                                    bool verifies_newest = true);

// Opens the checkpoint at `path`, or the newest checkpoint in the directory `path`.
Checkpoint open_same_checkpoint(const std::string& path, ProcessGroup& group);

// Returns the model at `path` as rank 0 resolves it (resolve_model).
ModelPath resolve_same_model(const std::string& path, ProcessGroup& group);

// Opens the weights of the model at `path` (resolve_model). Returns null if `path` is empty.
std::unique_ptr<WeightSource> open_same_weights(const std::string& path, ProcessGroup& group);

// Checks that `dir`, the value of the config key `key`, is the same directory on all ranks: rank 0 creates a file in it
// that every rank must see.
void check_shared_directory(const char* key, const std::string& dir, ProcessGroup& group);

// Checks that all ranks see the same token files for `sources`, the datasets of the config key `key`.
void check_same_data(const char* key, const std::vector<DatasetSource>& sources, ProcessGroup& group);

}  // namespace octavo

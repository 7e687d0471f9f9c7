// Several ranks read the same files: rank 0 chooses, where there is a choice, and the others must see the same as it
// does before anything is computed. A rank may see another folder (a relative path, a disk of its own, a stale mount)
// and would train on with other weights or tokens without a word.
//
// All are collectives; what a rank sees otherwise is an InputError on every rank that names the rank, the path and what
// it and rank 0 have there.
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

// Returns on every rank what `find` returns on rank 0, which alone calls it. `what` names the work in messages.
std::string found_by_root(const char* what, ProcessGroup& group, const std::function<std::string()>& find);

// The checkpoint of a run: the one that checkpoint.resume names (resolve_checkpoint), with auto the newest of
// checkpoint.dir; none where there is none. Its checksums are compared when it is read.
std::optional<Checkpoint> open_run_checkpoint(const CheckpointConfig& config, ProcessGroup& group);

// The checkpoint that a run resumes, in a directory that it has locked. It has all that a run needs (check_resumable).
// Each rank compares the checksums of the parts that it needs, and rank 0 those of the files. With auto it is the
// newest in which no rank finds damage. Newer ones are renamed (kDamagedPrefix), with a warning; where all are damaged,
// that is an InputError and nothing is renamed. Without `renames` the warning is all that happens to
// damaged ones.
std::optional<Checkpoint> open_checkpoint_to_resume(const CheckpointConfig& config, std::span<const TensorPart> needed,
                                                    ProcessGroup& group, bool renames = true);

// The checkpoint at `path`, or the newest in it.
Checkpoint open_same_checkpoint(const std::string& path, ProcessGroup& group);

// The model at `path` as rank 0 resolves it (resolve_model).
ModelPath resolve_same_model(const std::string& path, ProcessGroup& group);

// The weights of the model at `path` (resolve_model); null where it is empty.
std::unique_ptr<WeightSource> open_same_weights(const std::string& path, ProcessGroup& group);

// Every rank's `dir`, of the key `key`, is the one that rank 0 writes to: the others see a file that it makes there.
void check_shared_directory(const char* key, const std::string& dir, ProcessGroup& group);

// Compares the token files that `sources`, the datasets of the key `key`, name.
void check_same_data(const char* key, const std::vector<DatasetSource>& sources, ProcessGroup& group);

}  // namespace octavo

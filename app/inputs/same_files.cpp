#include "app/inputs/same_files.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "checkpoint/checkpoint_files.h"
#include "core/error.h"
#include "core/log.h"
#include "data/loader.h"
#include "data/tokens/token_file.h"
#include "data/tokens/token_stream.h"
#include "model/optimizer/optimizer_config.h"
#include "model/parameters/parameters.h"
#include "parallel/ranks/start_checks.h"

namespace octavo {

namespace {

constexpr const char* kCheckpoint = "the checkpoint";  // Name of the checkpoint in messages.
constexpr const char* kComparing = "comparing the checksums of a checkpoint";
constexpr std::span<const TensorPart> kNoParts;

// Returns the result of `look`, or the message of its error.
std::string found_by(const std::function<std::string()>& look) {
  try {
    return look();
  } catch (const InputError& error) {
    return error.what();
  }
}

// Returns the identities of all token files in the dataset `path`.
std::string identities(const std::string& path) {
  std::string lines;
  for (const std::string& file : find_token_files(path)) lines += token_file_identity(file) + "; ";
  return lines;
}

// Returns on every rank the manifest of the checkpoint that `choose` selects on rank 0. A shared file system is thus
// read once, whatever the number of ranks. The path is empty if rank 0 selects none.
ManifestFile read_manifest_of_root(const std::function<std::string()>& choose, ProcessGroup& group) {
  ManifestFile manifest;
  group.throw_file_errors_on_all_ranks("reading the files that rank 0 chose", [&] {
    if (!group.is_root()) return;
    if (const std::string path = choose(); !path.empty()) manifest = read_manifest(path);
  });
  manifest.checkpoint = group.broadcast(manifest.checkpoint.string());
  if (!manifest.checkpoint.empty()) manifest.text = group.broadcast(std::move(manifest.text));
  return manifest;
}

// Checks that the other ranks see the same checkpoint under its path. They read only the part of their manifests that
// distinguishes checkpoints.
void check_same_manifest(const char* what, const ManifestFile& manifest, const Checkpoint& checkpoint,
                         ProcessGroup& group) {
  std::string found = checkpoint.identity();
  group.throw_file_errors_on_all_ranks("examining the files that rank 0 chose", [&] {
    if (group.is_root()) return;
    found = found_by([&] {
      if (manifest_mark(manifest.checkpoint) == manifest_mark(manifest)) return checkpoint.identity();
      return fmt::format("{} with another manifest", manifest.checkpoint.string());
    });
  });
  check_same_settings(group, fmt::format("{} {}\n", what, found));
}

std::optional<Checkpoint> open_checkpoint(const char* what, const std::function<std::string()>& choose,
                                          ProcessGroup& group) {
  const ManifestFile manifest = read_manifest_of_root(choose, group);
  if (manifest.checkpoint.empty()) return std::nullopt;
  std::optional<Checkpoint> checkpoint;
  group.throw_file_errors_on_all_ranks("opening the files that rank 0 chose", [&] { checkpoint.emplace(manifest); });
  check_same_manifest(what, manifest, *checkpoint, group);
  return checkpoint;
}

struct DamagedPath {
  std::string path;
  std::string damage;
};

// Renames damaged checkpoints to names that no other checkpoint needs, and never removes them. Without `renames` only
// logs that they are skipped.
void set_aside(const std::vector<DamagedPath>& damaged, const Checkpoint& instead, bool renames) {
  for (const auto& [path, damage] : damaged) {
    if (!renames) {
      log_warning("{} is damaged, and {} is used instead: {}", path, instead.path().string(), damage);
      continue;
    }
    const std::filesystem::path aside = set_aside_directory(path, kDamagedPrefix);
    log_warning("{} is damaged and was renamed to {}; {} is used instead: {}", path, aside.string(),
                instead.path().string(), damage);
  }
}

void verify_needed(Checkpoint& checkpoint, std::span<const TensorPart> needed, const ProcessGroup& group) {
  check_resumable(checkpoint);
  checkpoint.verify(needed);
  if (!group.is_root()) return;
  for (const ListedFile& file : checkpoint.files()) checkpoint.read_file(file);
}

// Returns the newest checkpoint that every rank finds undamaged, or nothing if there are no checkpoints. Compares the
// checksums of the tensors in the newest checkpoint only if `verifies_newest` is set.
std::optional<Checkpoint> open_newest_undamaged(const std::string& dir, std::span<const TensorPart> needed,
                                                ProcessGroup& group, bool renames, bool verifies_newest) {
  std::vector<FoundCheckpoint> left;  // On rank 0, checkpoints that were not opened yet.
  group.throw_file_errors_on_all_ranks("looking for checkpoints", [&] {
    if (group.is_root()) left = find_checkpoints(dir, true);
  });
  std::vector<DamagedPath> damaged;
  for (;;) {
    const std::string path = group.broadcast(left.empty() ? "" : left.back().path.string());
    if (path.empty()) break;
    if (group.is_root()) left.pop_back();
    ManifestFile manifest{path, {}};
    std::optional<Checkpoint> found;
    const bool verifies = verifies_newest || !damaged.empty();
    std::string damage = damage_found("reading a manifest", group, [&] {
      if (group.is_root()) manifest = read_manifest(path);
    });
    if (damage.empty()) {
      manifest.text = group.broadcast(std::move(manifest.text));
      damage = damage_found(kComparing, group, [&] { found.emplace(manifest); });
    }
    if (damage.empty()) {
      check_same_manifest(kCheckpoint, manifest, *found, group);
      damage = damage_found(kComparing, group, [&] { verify_needed(*found, verifies ? needed : kNoParts, group); });
    }
    if (!damage.empty()) {
      damaged.push_back({path, damage});
      continue;
    }
    group.throw_file_errors_on_all_ranks("setting damaged checkpoints aside", [&] {
      if (group.is_root()) set_aside(damaged, *found, renames);
    });
    return found;
  }
  group.throw_on_all_ranks([&] {
    CHECK_INPUT(damaged.empty(), "checkpoint.dir {}: all {} checkpoints are damaged; the damage of the newest is: {}",
                dir, damaged.size(), damaged.front().damage);
  });
  return std::nullopt;
}

bool has_tensor(const Checkpoint& checkpoint, const char* state, const ParameterSpec& parameter) {
  const std::string prefix = *state == '\0' ? "" : fmt::format("{}.", state);
  const CheckpointTensorInfo* found = checkpoint.find(prefix + parameter.name);
  return found != nullptr && found->shape == parameter.whole_shape;
}

// Returns whether the checkpoint has all optimizer states of the parameter.
bool has_optimizer_states(const Checkpoint& checkpoint, const ParameterSpec& parameter) {
  return std::ranges::any_of(kOptimizers, [&](const OptimizerTraits& optimizer) {
    return std::ranges::all_of(optimizer.states, [&](const OptimizerStateTraits& state) {
      return has_tensor(checkpoint, state.name, parameter);
    });
  });
}

// A file with a unique name that is removed when the object is destroyed.
class ProbeFile {
 public:
  ProbeFile(const char* key, const std::string& dir)
      : path_(std::filesystem::path(dir) / (std::string(kProbePrefix) + "XXXXXX")) {
    const int file = ::mkstemp(path_.data());
    CHECK_INPUT(file >= 0, "{} {}: no file can be created there: {}", key, dir, std::strerror(errno));
    ::close(file);
  }
  ~ProbeFile() { ::unlink(path_.c_str()); }
  ProbeFile(const ProbeFile&) = delete;
  ProbeFile& operator=(const ProbeFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

std::string found_by_root(const char* what, ProcessGroup& group, const std::function<std::string()>& find) {
  std::string found;
  group.throw_file_errors_on_all_ranks(what, [&] {
    if (group.is_root()) found = find();
  });
  return group.broadcast(found);
}

std::string damage_found(const char* what, ProcessGroup& group, const std::function<void()>& look) {
  std::string damage;
  group.throw_file_errors_on_all_ranks(what, [&] {
    try {
      look();
    } catch (const DamagedCheckpoint& error) {
      damage = error.what();
    }
  });
  return group.broadcast_first(damage);
}

std::string path_to_resume(const CheckpointConfig& config) {
  if (config.resume == "never") return "";
  if (config.resume != "auto") return resolve_checkpoint(config.resume);
  return Checkpoint::newest(config.dir).value_or("").string();
}

void check_resumable(const Checkpoint& checkpoint) {
  const std::string manifest = (checkpoint.path() / kManifestName).string();
  const nlohmann::json& meta = checkpoint.meta();
  const bool is_imported = meta.contains("imported_from");
  const bool has_average = checkpoint.has_average();
  const ParameterLayout layout(checkpoint.model_config());
  for (const ParameterSpec& parameter : layout.specs()) {
    CHECK_AS(DamagedCheckpoint, has_tensor(checkpoint, "", parameter),
             "{}: lacks the tensor {} of its model, or has it in another shape", manifest, parameter.name);
    CHECK_AS(DamagedCheckpoint, is_imported || has_optimizer_states(checkpoint, parameter),
             "{}: lacks the optimizer states of {}; to start a new run from its weights, set model.init_from={} and "
             "another logging.dir and checkpoint.dir",
             manifest, parameter.name, checkpoint.path().string());
    CHECK_AS(DamagedCheckpoint, !has_average || has_tensor(checkpoint, kEmaState, parameter),
             "{}: has a moving average of other weights, but not of {}", manifest, parameter.name);
  }
  if (is_imported) return;
  const auto config = meta.find("config");
  CHECK_AS(DamagedCheckpoint, config != meta.end() && config->contains("training"),
           "{}: has neither the config of the run that saved it nor the origin of an imported model", manifest);
  CHECK_AS(DamagedCheckpoint, meta.contains("loader"),
           "{}: has no loader state, without which the data cannot continue", manifest);
  try {
    check_loader_state(meta.at("loader"));
  } catch (const InputError& error) {
    throw DamagedCheckpoint(fmt::format("{}: {}", manifest, error.what()));
  }
}

std::optional<Checkpoint> open_run_checkpoint(const CheckpointConfig& config, ProcessGroup& group) {
  return open_checkpoint(
      kCheckpoint, [&] { return path_to_resume(config); }, group);
}

std::optional<Checkpoint> open_checkpoint_to_resume(const CheckpointConfig& config, std::span<const TensorPart> needed,
                                                    ProcessGroup& group, bool renames, bool verifies_newest) {
  if (config.resume == "auto") return open_newest_undamaged(config.dir, needed, group, renames, verifies_newest);
  std::optional<Checkpoint> found = open_run_checkpoint(config, group);
  group.throw_file_errors_on_all_ranks(kComparing, [&] {
    if (found) verify_needed(*found, verifies_newest ? needed : kNoParts, group);
  });
  return found;
}

Checkpoint open_same_checkpoint(const std::string& path, ProcessGroup& group) {
  return *open_checkpoint(
      kCheckpoint, [&] { return Checkpoint::resolve(path).string(); }, group);
}

ModelPath resolve_same_model(const std::string& path, ProcessGroup& group) {
  ModelPath model;
  group.throw_file_errors_on_all_ranks("looking for a model", [&] {
    if (group.is_root()) model = resolve_model(path);
  });
  model.path = group.broadcast(model.path);
  model.is_checkpoint = group.all_reduce_max(model.is_checkpoint ? 1 : 0) != 0;
  return model;
}

std::unique_ptr<WeightSource> open_same_weights(const std::string& path, ProcessGroup& group) {
  constexpr const char* kWhat = "model.init_from";
  std::string chosen, found;
  bool is_checkpoint = false;
  std::unique_ptr<WeightSource> source;
  group.throw_file_errors_on_all_ranks("opening the files that rank 0 chose", [&] {
    if (!group.is_root() || path.empty()) return;
    const ModelPath model = resolve_model(path);
    is_checkpoint = model.is_checkpoint;
    chosen = model.path;
    if (is_checkpoint) return;
    source = std::make_unique<HfWeights>(model.path);
    chosen = source->path().string();
    found = source->identity();
  });
  if (group.all_reduce_max(is_checkpoint ? 1 : 0) != 0) {
    std::optional<Checkpoint> checkpoint = open_checkpoint(
        kWhat, [&] { return chosen; }, group);
    group.throw_on_all_ranks([&] { source = std::make_unique<CheckpointWeights>(std::move(*checkpoint)); });
    return source;
  }
  chosen = group.broadcast(chosen);
  if (chosen.empty()) return nullptr;
  group.throw_file_errors_on_all_ranks("opening the files that rank 0 chose", [&] {
    if (group.is_root()) return;
    found = found_by([&] {
      source = std::make_unique<HfWeights>(chosen);
      return source->identity();
    });
  });
  check_same_settings(group, fmt::format("{} {}\n", kWhat, found));
  return source;
}

void check_shared_directory(const char* key, const std::string& dir, ProcessGroup& group) {
  if (group.size() == 1) return;
  std::optional<ProbeFile> probe;
  const std::string path =
      found_by_root("making a file in a directory", group, [&] { return probe.emplace(key, dir).path(); });
  group.throw_file_errors_on_all_ranks("looking for a file in a directory", [&] {
    CHECK_INPUT(is_there(path),
                "{} {} on rank {} is not the directory of rank 0, whose file {} is missing there; expected a directory "
                "on a file system that all ranks share",
                key, dir, group.rank(), path);
  });
}

void check_same_data(const char* key, const std::vector<DatasetSource>& sources, ProcessGroup& group) {
  std::string lines;
  group.throw_file_errors_on_all_ranks("looking at the data", [&] {
    for (const DatasetSource& source : sources) {
      for (const std::string& path : source.paths)
        lines += fmt::format("{} {}\n", key, found_by([&] { return identities(path); }));
    }
  });
  check_same_settings(group, lines);
}

}  // namespace octavo

#include "app/inputs/model_path.h"

#include <functional>
#include <ranges>
#include <vector>

#include "app/config/config_node.h"
#include "app/job/progress.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/hf_format.h"
#include "core/error.h"
#include "core/files/input_file.h"
#include "core/files/json_input.h"
#include "core/log.h"

namespace octavo {

namespace {

namespace fs = std::filesystem;

constexpr const char* kKinds = "a checkpoint, a directory of checkpoints, a run folder or a Hugging Face directory";

ModelPathFacts look_at(const fs::path& path) {
  ModelPathFacts facts{.is_there = path_exists(path)};
  facts.is_directory = facts.is_there && is_directory_at(path);
  if (!facts.is_directory) return facts;
  facts.has_manifest = is_there(path / kManifestName);
  facts.has_checkpoints = !facts.has_manifest && Checkpoint::newest(path).has_value();
  facts.has_metrics = path_exists(path / "metrics.jsonl") || path_exists(path / "starts.jsonl");
  facts.has_hf_config = path_exists(path / kHfConfigName);
  return facts;
}

std::string text_at(const ConfigNode& tree, const char* key) {
  const ConfigNode* found = tree.find_name(key);
  return found != nullptr && found->kind == ConfigNode::Kind::kScalar ? found->text : "";
}

RecordedPlaces read_places(const fs::path& run) {
  RecordedPlaces places;
  if (path_exists(run / "config.yaml")) {
    const ConfigNode tree = node_from_file(run / "config.yaml");
    places.logging_dir = text_at(tree, "logging.dir");
    places.checkpoint_dir = text_at(tree, "checkpoint.dir");
  }
  if (!path_exists(run / "starts.jsonl")) return places;
  InputFile starts(run / "starts.jsonl");
  for (std::string line; starts.read_line(line);) {
    // Becomes discarded JSON if a crash cut the line short.
    const nlohmann::json start = nlohmann::json::parse(line, nullptr, false);
    places.directory = find_value<std::string>(start, "/directory").value_or(places.directory);
  }
  return places;
}

// Converts a path that the run recorded to an absolute path without a trailing slash.
fs::path recorded_place(const std::string& path, const RecordedPlaces& places) {
  const fs::path place = (fs::path(places.directory) / path).lexically_normal();
  return place.has_filename() ? place : place.parent_path();
}

// Returns the checkpoint directory of a run that was moved or copied together with the directory it was started in.
// Both recorded paths, logging.dir and checkpoint.dir, must be relative to that directory. Its new place is `run`
// without logging.dir at the end, and the checkpoints are at checkpoint.dir in the new place. Empty if there are none.
fs::path checkpoint_dir_in_moved_project(const fs::path& run, const RecordedPlaces& places) {
  const fs::path folder = fs::path(places.logging_dir).lexically_normal();
  if (folder.empty() || folder.is_absolute() || fs::path(places.checkpoint_dir).is_absolute()) return {};
  fs::path project = fs::weakly_canonical(run);
  for (fs::path rest = folder; !rest.empty(); rest = rest.parent_path()) {
    if (!rest.has_filename()) continue;  // The path had a trailing slash.
    if (project.filename() != rest.filename()) return {};
    project = project.parent_path();
  }
  const fs::path dir = project / places.checkpoint_dir;
  return Checkpoint::newest(dir).has_value() ? dir : fs::path();
}

// Returns the logging.dir of the run that saved a checkpoint with the metadata `meta`. Returns nothing for an imported
// checkpoint.
std::optional<std::string> recorded_logging_dir(const nlohmann::json& meta) {
  return find_value<std::string>(meta, "/config/logging/dir");
}

// Returns whether the checkpoint at `path` may belong to the run. Runs of earlier versions shared one directory by
// default. A checkpoint inside the run's own folder always belongs to the run.
bool is_of_run(const fs::path& path, const fs::path& run, const RecordedPlaces& places) {
  if (is_inside(path, run)) return true;
  const std::optional<std::string> logging_dir = recorded_logging_dir(Checkpoint(path).meta());
  if (places.logging_dir.empty() || !logging_dir) return true;
  return recorded_place(*logging_dir, places) == recorded_place(places.logging_dir, places);
}

// Returns the newest complete checkpoint in `dir`. Warns about newer ones without a manifest, which are skipped.
fs::path newest_complete(const fs::path& dir) {
  const std::vector<FoundCheckpoint> found = find_checkpoints(dir, true);
  for (const FoundCheckpoint& checkpoint : std::ranges::reverse_view(found)) {
    if (checkpoint.is_complete) return checkpoint.path;
    log_warning("{}: has no {}, so it is not complete and is skipped", checkpoint.path.string(), kManifestName);
  }
  throw InputError(fmt::format("{}: has no complete checkpoint step_N in it", dir.string()));
}

fs::path checkpoint_of_run(const fs::path& run) {
  const RecordedPlaces places = read_places(run);
  const fs::path moved = checkpoint_dir_in_moved_project(run, places);
  const fs::path dir = moved.empty() ? run_checkpoint_dir(run, places) : moved;
  const std::optional<fs::path> newest = Checkpoint::newest(dir);
  CHECK_INPUT(newest.has_value(), "{}: is the folder of a run that has no complete checkpoint, expected one in {}",
              run.string(), dir.string());
  CHECK_INPUT(is_of_run(*newest, run, places),
              "{}: the newest checkpoint of this run folder, {}, was saved by another run; expected "
              "the path of a checkpoint",
              run.string(), newest->string());
  return newest_complete(dir);
}

// Opens the checkpoint at path_of(). Returns nothing if it cannot be read.
std::optional<Checkpoint> open_readable(const std::function<std::string()>& path_of) {
  try {
    return Checkpoint(path_of());
  } catch (const Error&) {  // Ignored here. The error is reported when the checkpoint is resumed.
    return std::nullopt;
  }
}

// Returns the newest readable checkpoint in `dir`. If `of_run` is true, skips imported checkpoints.
std::optional<Checkpoint> newest_readable(const std::string& dir, bool of_run) {
  const std::vector<FoundCheckpoint> checkpoints = find_checkpoints(dir);
  for (const FoundCheckpoint& one : std::ranges::reverse_view(checkpoints)) {
    std::optional<Checkpoint> checkpoint = open_readable([&] { return one.path.string(); });
    if (checkpoint && (!of_run || recorded_logging_dir(checkpoint->meta()))) return checkpoint;
  }
  return std::nullopt;
}

}  // namespace

ModelKind model_kind(const std::string& path, const ModelPathFacts& facts) {
  CHECK_INPUT(facts.is_there, "{}: there is no such checkpoint or Hugging Face directory, expected {}", path, kKinds);
  CHECK_INPUT(facts.is_directory, "{}: is a file, expected {}", path, kKinds);
  struct Candidate {
    ModelKind kind;
    bool fits;
    const char* name;
  };
  const Candidate candidates[] = {
      {ModelKind::kCheckpoint, facts.has_manifest, "a checkpoint"},
      {ModelKind::kCheckpoints, !facts.has_manifest && facts.has_checkpoints, "a directory of checkpoints"},
      {ModelKind::kRun, facts.has_metrics && !facts.has_manifest && !facts.has_checkpoints, "a run folder"},
      {ModelKind::kHuggingFace, facts.has_hf_config, "a Hugging Face directory"}};
  const Candidate* found = nullptr;
  for (const Candidate& candidate : candidates) {
    if (!candidate.fits) continue;
    CHECK_INPUT(found == nullptr, "{}: is both {} and {}, expected one of them", path, found->name, candidate.name);
    found = &candidate;
  }
  CHECK_INPUT(found != nullptr,
              "{}: is neither a checkpoint (no {}), a directory of checkpoints (no complete step_N), a run folder (no "
              "metrics.jsonl) nor a Hugging Face directory (no {})",
              path, kManifestName, kHfConfigName);
  return found->kind;
}

fs::path run_checkpoint_dir(const fs::path& run, const RecordedPlaces& places) {
  if (places.checkpoint_dir.empty()) return run / "checkpoints";
  const fs::path start = places.directory;
  const fs::path dir = (start / places.checkpoint_dir).lexically_normal();
  if (places.logging_dir.empty()) return dir;
  const fs::path inside = dir.lexically_relative((start / places.logging_dir).lexically_normal());
  return inside.empty() || *inside.begin() == ".." ? dir : run / inside;
}

ModelPath resolve_model(const std::string& path) {
  const fs::path file = path;
  if (file.filename() == kHfConfigName && !is_directory_at(file) && path_exists(file))
    return {file.has_parent_path() ? file.parent_path().string() : ".", false};
  switch (model_kind(path, look_at(path))) {
    case ModelKind::kCheckpoint:
      return {path, true};
    case ModelKind::kCheckpoints:
      return {newest_complete(path).string(), true};
    case ModelKind::kRun:
      return {checkpoint_of_run(path).string(), true};
    case ModelKind::kHuggingFace:
      return {path, false};
  }
  throw Error(fmt::format("{}: is a model of an unknown kind", path));
}

std::string resolve_checkpoint(const std::string& path) {
  const ModelPath found = resolve_model(path);
  CHECK_INPUT(found.is_checkpoint,
              "{}: is a Hugging Face directory, expected a checkpoint, a directory of checkpoints or a run folder",
              path);
  return found.path;
}

std::optional<Checkpoint> checkpoint_to_resume(const CheckpointConfig& config) {
  if (config.resume == "never") return std::nullopt;
  if (config.resume == "auto") return newest_readable(config.dir, false);
  return open_readable([&] { return resolve_checkpoint(config.resume); });
}

bool began_at(const std::string& path, const nlohmann::json& meta) {
  const std::string recorded = recorded_beginning(meta);
  return !recorded.empty() && absolute_path(recorded) == absolute_path(path);
}

std::string find_own_checkpoints(Config& config) {
  const std::string path = config.checkpoint.resume;
  if (!is_path(path)) return "";
  const std::optional<Checkpoint> newest = newest_readable(config.checkpoint.dir, true);
  if (!newest) return "";
  const std::string logging_dir = absolute_path(recorded_logging_dir(newest->meta()).value());
  // The folder of a run may have been moved.
  const bool is_its_folder = logging_dir == absolute_path(config.logging.dir) || !fs::exists(logging_dir);
  if (!is_its_folder || !began_at(path, newest->meta())) return "";
  config.checkpoint.resume = "auto";
  return fmt::format(
      "this run began with checkpoint.resume={} and has saved checkpoints since, so it resumes those in {}", path,
      config.checkpoint.dir);
}

}  // namespace octavo

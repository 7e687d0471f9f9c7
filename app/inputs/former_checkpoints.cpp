#include "app/inputs/former_checkpoints.h"

#include <filesystem>
#include <functional>
#include <ranges>
#include <system_error>

#include "app/inputs/model_path.h"
#include "checkpoint/checkpoint_files.h"
#include "core/error.h"

namespace octavo {

namespace {

namespace fs = std::filesystem;

fs::path absolute_path(const std::string& path) {
  std::error_code error;
  const fs::path found = fs::weakly_canonical(fs::absolute(path), error);
  return (error ? fs::path(path) : found) / "";
}

// Opens the checkpoint at path_of(). Returns nothing if it cannot be read.
std::optional<Checkpoint> open_readable(const std::function<std::string()>& path_of) {
  try {
    return Checkpoint(path_of());
  } catch (const Error&) {  // Ignored here. The error is reported when the checkpoint is resumed.
    return std::nullopt;
  }
}

// Returns the newest readable checkpoint in `dir`, or the newest one that a run saved if `of_run` is set.
std::optional<Checkpoint> newest_readable(const std::string& dir, bool of_run) {
  const std::vector<FoundCheckpoint> checkpoints = find_checkpoints(dir);
  for (const FoundCheckpoint& one : std::ranges::reverse_view(checkpoints)) {
    std::optional<Checkpoint> checkpoint = open_readable([&] { return one.path.string(); });
    if (checkpoint && (!of_run || recorded_logging_dir(checkpoint->meta()))) return checkpoint;
  }
  return std::nullopt;
}

bool is_path(const std::string& resume) { return resume != "auto" && resume != "never"; }

}  // namespace

std::optional<Checkpoint> checkpoint_to_resume(const CheckpointConfig& config) {
  if (config.resume == "never") return std::nullopt;
  if (config.resume == "auto") return newest_readable(config.dir, false);
  return open_readable([&] { return resolve_checkpoint(config.resume); });
}

std::string recorded_beginning(const nlohmann::json& meta) {
  const nlohmann::json::json_pointer key("/config/checkpoint/resume");
  const std::string resume = meta.contains(key) && meta.at(key).is_string() ? meta.at(key).get<std::string>() : "auto";
  return is_path(resume) ? resume : "";
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
  const fs::path logging_dir = absolute_path(recorded_logging_dir(newest->meta()).value());
  // The folder of a run may have been moved.
  const bool is_its_folder = logging_dir == absolute_path(config.logging.dir) || !fs::exists(logging_dir);
  if (!is_its_folder || !began_at(path, newest->meta())) return "";
  config.checkpoint.resume = "auto";
  return fmt::format(
      "this run began with checkpoint.resume={} and has saved checkpoints since, so it resumes those in {}", path,
      config.checkpoint.dir);
}

}  // namespace octavo

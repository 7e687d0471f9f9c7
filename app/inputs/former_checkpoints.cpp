#include "app/inputs/former_checkpoints.h"

#include <filesystem>
#include <optional>
#include <ranges>
#include <system_error>

#include "app/inputs/model_path.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_files.h"
#include "core/error.h"

namespace octavo {

namespace {

namespace fs = std::filesystem;

constexpr const char* kFormerDefault = "checkpoints";

fs::path absolute_path(const std::string& path) {
  std::error_code error;
  const fs::path found = fs::weakly_canonical(fs::absolute(path), error);
  return (error ? fs::path(path) : found) / "";
}

// Returns the metadata of the newest readable checkpoint in `dir` that a run saved, or null.
nlohmann::json newest_meta(const std::string& dir) {
  const std::vector<FoundCheckpoint> checkpoints = find_checkpoints(dir);
  for (const FoundCheckpoint& one : std::ranges::reverse_view(checkpoints)) {
    try {
      if (const Checkpoint checkpoint(one.path.string()); recorded_logging_dir(checkpoint.meta()))
        return checkpoint.meta();
    } catch (const Error&) {  // Ignored here. The error is reported when the checkpoint is resumed.
    }
  }
  return nullptr;
}

bool is_path(const std::string& resume) { return resume != "auto" && resume != "never"; }

}  // namespace

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
  const nlohmann::json meta = newest_meta(config.checkpoint.dir);
  // The folder of a run may have been moved.
  const std::optional<std::string> logging_dir = recorded_logging_dir(meta);
  const bool is_its_folder = logging_dir && (absolute_path(*logging_dir) == absolute_path(config.logging.dir) ||
                                             !fs::exists(absolute_path(*logging_dir)));
  if (!is_its_folder || !began_at(path, meta)) return "";
  config.checkpoint.resume = "auto";
  return fmt::format(
      "this run began with checkpoint.resume={} and has saved checkpoints since, so it resumes those in {}", path,
      config.checkpoint.dir);
}

std::string find_former_checkpoints(Config& config) {
  const std::string dir = config.checkpoint.dir;
  if (config.checkpoint.resume != "auto" || dir != default_checkpoint_dir(config)) return "";
  if (absolute_path(dir) == absolute_path(kFormerDefault) || !find_checkpoints(dir).empty()) return "";
  const std::optional<std::string> logging_dir = recorded_logging_dir(newest_meta(kFormerDefault));
  if (!logging_dir) return "";
  if (absolute_path(*logging_dir) != absolute_path(config.logging.dir)) {
    return fmt::format(
        "the checkpoints in ./{} belong to another run (logging.dir {}) and are ignored; this run's checkpoints are in "
        "{}",
        kFormerDefault, *logging_dir, dir);
  }
  config.checkpoint.dir = kFormerDefault;
  return fmt::format(
      "this run keeps its checkpoints in ./{}, the default directory of earlier versions, because {} holds none",
      kFormerDefault, dir);
}

}  // namespace octavo

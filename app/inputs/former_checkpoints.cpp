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

// Returns the logging.dir of the newest readable checkpoint that a run saved.
std::optional<std::string> newest_logging_dir(const std::vector<FoundCheckpoint>& checkpoints) {
  for (const FoundCheckpoint& one : std::ranges::reverse_view(checkpoints)) {
    try {
      if (const auto logging_dir = recorded_logging_dir(Checkpoint(one.path.string()).meta())) return logging_dir;
    } catch (const Error&) {  // Ignored here. The error is reported when the checkpoint is resumed.
    }
  }
  return std::nullopt;
}

}  // namespace

std::string find_former_checkpoints(Config& config) {
  const std::string dir = config.checkpoint.dir;
  if (config.checkpoint.resume != "auto" || dir != default_checkpoint_dir(config)) return "";
  if (absolute_path(dir) == absolute_path(kFormerDefault) || !find_checkpoints(dir).empty()) return "";
  const std::optional<std::string> logging_dir = newest_logging_dir(find_checkpoints(kFormerDefault));
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

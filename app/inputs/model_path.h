// Finds the model that a MODEL argument or model.init_from names: a checkpoint, a directory of checkpoints, the folder
// of a run or a Hugging Face directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace octavo {

enum class ModelKind : uint8_t { kCheckpoint, kCheckpoints, kRun, kHuggingFace };

// Facts about a path that tell the kinds apart.
struct ModelPathFacts {
  bool is_there = false;
  bool is_directory = false;
  bool has_manifest = false;     // manifest.json
  bool has_checkpoints = false;  // a complete step_N
  bool has_metrics = false;      // metrics.jsonl or starts.jsonl
  bool has_hf_config = false;    // config.json
};

// Returns the kind of the model at `path`, which messages name. The folder of a run that holds checkpoints itself is a
// directory of checkpoints. InputError where there is no model, or where two kinds are possible.
ModelKind model_kind(const std::string& path, const ModelPathFacts& facts);

// Places that a run recorded in its folder: the directory of its last start, to which its paths are relative, and two
// keys of its config.
struct RecordedPlaces {
  std::string directory;
  std::string logging_dir;
  std::string checkpoint_dir;  // empty where it is not recorded
};

// Returns the logging.dir of the run that saved a checkpoint with this `meta`. Returns none for an imported checkpoint.
std::optional<std::string> recorded_logging_dir(const nlohmann::json& meta);

// Returns the directory of the checkpoints of the run whose folder is now `run`. Checkpoints inside the folder move
// with it; those outside are where the run recorded them.
std::filesystem::path run_checkpoint_dir(const std::filesystem::path& run, const RecordedPlaces& places);

// The model that is used: one checkpoint, or a Hugging Face directory.
struct ModelPath {
  std::string path;
  bool is_checkpoint = false;
};

// Returns the model at `path`: of a directory of checkpoints and of a run the newest complete checkpoint. InputError
// naming the path, also where the newest checkpoint of a run's directory is that of another run.
ModelPath resolve_model(const std::string& path);

// Returns the checkpoint at `path`: of a directory of checkpoints and of a run the newest complete one. InputError as
// by resolve_model(), and for a Hugging Face directory.
std::string resolve_checkpoint(const std::string& path);

}  // namespace octavo

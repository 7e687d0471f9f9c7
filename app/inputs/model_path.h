// Finds the model that the MODEL argument of a command or model.init_from names: a checkpoint, a directory of
// checkpoints, the folder of a run, or a Hugging Face directory. Also finds the checkpoints that a run saved at former
// starts. A run that began with the checkpoint of another run (checkpoint.resume: PATH) resumes its own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "app/config/config.h"
#include "checkpoint/checkpoint.h"

namespace octavo {

enum class ModelKind : uint8_t { kCheckpoint, kCheckpoints, kRun, kHuggingFace };

// Facts about a path from which model_kind() decides.
struct ModelPathFacts {
  bool is_there = false;
  bool is_directory = false;
  bool has_manifest = false;     // Whether manifest.json exists.
  bool has_checkpoints = false;  // Whether a complete checkpoint step_N exists.
  bool has_metrics = false;      // Whether metrics.jsonl or starts.jsonl exists.
  bool has_hf_config = false;    // Whether config.json exists.
};

// Returns the kind of the model at `path`. A run's folder that holds checkpoints directly counts as a directory of
// checkpoints. Throws an InputError that names `path` if there is no model or if two kinds are possible.
ModelKind model_kind(const std::string& path, const ModelPathFacts& facts);

// Paths that a run recorded in its folder at its last start.
struct RecordedPlaces {
  std::string directory;
  std::string logging_dir;
  std::string checkpoint_dir;  // Empty if it was not recorded.
};

// Returns the checkpoint directory of the run whose folder is now `run`. Checkpoints inside the folder are assumed to
// have moved with it. Checkpoints elsewhere are at the recorded path.
std::filesystem::path run_checkpoint_dir(const std::filesystem::path& run, const RecordedPlaces& places);

// The model that a command uses: a checkpoint or a Hugging Face directory.
struct ModelPath {
  std::string path;
  bool is_checkpoint = false;
};

// Returns the model at `path`. For a directory of checkpoints and for a run, this is the newest complete checkpoint. A
// config.json stands for its Hugging Face directory. Throws an InputError that names the path if there is no model, or
// if the newest checkpoint in the directory of a run belongs to another run.
ModelPath resolve_model(const std::string& path);

// Returns the checkpoint at `path`. For a directory of checkpoints and for a run, this is the newest complete
// checkpoint. Throws like resolve_model(), and for a Hugging Face directory.
std::string resolve_checkpoint(const std::string& path);

// Returns the checkpoint that the run resumes, or nothing if there is none that can be read. An automatic resume takes
// the newest readable one. An error of a checkpoint is reported when the run opens it.
std::optional<Checkpoint> checkpoint_to_resume(const CheckpointConfig& config);

// Returns whether the run that saved a checkpoint with the metadata `meta` began at `path` (recorded_beginning).
bool began_at(const std::string& path, const nlohmann::json& meta);

// Sets checkpoint.resume to auto if it is the path at which this run itself began, so that the command that began a run
// also resumes it. This is so if the newest readable checkpoint in checkpoint.dir records that path, and this
// logging.dir or one that no longer exists. Returns a line for the log that says so, or an empty text. Throws an
// InputError if checkpoint.dir cannot be read.
std::string find_own_checkpoints(Config& config);

}  // namespace octavo

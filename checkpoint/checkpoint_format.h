// What a checkpoint looks like on disk, for the code that writes and reads it.
//
//   DIR/step_00000500/manifest.json            written last: a directory with a manifest is complete
//                     rank_00000.safetensors   the pieces that rank 0 wrote; one file a rank that wrote any
//                     tokenizer.json           where there is one: files that the checkpoint carries (CarriedFile)
//   DIR/.tmp_step_00000500                     being written, or left behind by a crash
//   DIR/.old_step_00000500                     being replaced by a new checkpoint of the same step
//   DIR/damaged_step_00000500                  passed over by a resumption; ..._2 and so on where that name is taken
//   DIR/earlier/step_00000500                  of a run that a new one does not go on from; earlier_2 and so on
//   DIR/lock                                   held by the run that writes here (checkpoint/directory_lock.h)
//
// A tensor is known by its name and global shape and consists of pieces: element ranges of the flattened tensor, or of
// some columns of a 2-dimensional one, flattened row by row (checkpoint/tensor_slice.h), each stored under a key of a
// shard. The pieces of one range of columns hold each of its elements once, the ranges of columns each column once. So
// a reader needs nothing of the mesh that wrote it. Names: a parameter's Hugging Face name for its float32 master
// weights, and OptimizerState::name + "." + name for what the optimizer keeps of each.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/dtype.h"
#include "core/error.h"
#include "model/column_range.h"
#include "model/config.h"

namespace octavo {

inline constexpr const char* kAmaxHistory = "fp8.amax_history";  // of delayed scaling, [amax_history, slots]

// What was read is not what a completed save writes: a flipped bit, a file that is cut short or missing, a manifest
// with a hole. What cannot be read is another InputError: the next attempt may find it sound.
class DamagedCheckpoint : public InputError {
 public:
  using InputError::InputError;
};

struct CheckpointPiece {
  std::string file;   // shard within the checkpoint directory
  std::string key;    // tensor within the shard
  int64_t begin = 0;  // elements of the flattened tensor, or of its flattened columns where there are some
  int64_t end = 0;
  std::string checksum;      // XXH3 64 of the piece's bytes, 16 hex digits
  ColumnRange columns = {};  // none: all of them; "columns": [begin, end] in the manifest, only where there are some
};

struct CheckpointTensorInfo {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = DType::kFloat32;
  std::vector<CheckpointPiece> pieces;  // by columns and element, covering the tensor exactly once

  int64_t numel() const;
};

struct CheckpointShard {
  std::string file;
  int64_t bytes = 0;            // of the file
  std::string header_checksum;  // of the safetensors header
};

// A file that a checkpoint carries beside its tensors, so that it is whole wherever it is taken: a tokenizer's.
struct CarriedFile {
  std::string name;  // within the checkpoint directory
  std::string content;
};

struct CarriedFileInfo {
  std::string name;
  int64_t bytes = 0;
  std::string checksum;
};

struct CheckpointManifest {
  int64_t step = 0;
  ModelConfig model;
  int ranks = 1;        // that wrote it
  nlohmann::json meta;  // the trainer's: config, loader and random state, tokens seen
  std::vector<CheckpointShard> shards;
  std::vector<CheckpointTensorInfo> tensors;
  std::vector<CarriedFileInfo> files = {};  // "files" in the JSON, only where there are some
  std::string checksum = {};                // of the manifest that was read
};

// The manifest carries a checksum of itself, so that a damaged one is never believed: of its JSON without white space,
// keys in their order, and without the checksum. Thousands of ranks make it hundreds of megabytes, of which a tree
// would take ten times as many: it is written and read tensor by tensor.
std::string manifest_to_text(const CheckpointManifest& manifest);
// Whether the JSON says that it is one, damaged or not.
bool is_checkpoint_manifest(const nlohmann::json& json);
// DamagedCheckpoint naming `path` and what is wrong when the text is no manifest, its checksum is not that of its
// contents, it is not complete, or its model cannot exist or has more layers than there are tensors. InputError when it
// is not of a version that this build reads.
CheckpointManifest manifest_from_text(std::string_view text, const std::string& path);

// One rank's part, as it travels to the rank that writes the manifest: that rank's shard and pieces.
nlohmann::json manifest_part_to_json(const CheckpointManifest& part);
// Puts ranks' parts together.
class ManifestParts {
 public:
  // `manifest` must outlive the object.
  explicit ManifestParts(CheckpointManifest& manifest);
  // Adds a rank's shards and pieces. Throws when a tensor's shape or dtype differs between ranks.
  void add(const nlohmann::json& part);
  void add_tensor(const nlohmann::json& tensor);

 private:
  CheckpointManifest* manifest_;
  std::unordered_map<std::string, size_t> index_;  // of its tensors by name
};
// Sorts the pieces and throws Error unless they are of columns that there are and cover each tensor exactly once, and
// each has a checksum and lies in a shard that is listed with its own. Columns that are all of a tensor's become none.
// No manifest is written, and none is read, that is not complete.
void check_complete(CheckpointManifest& manifest);

// Model shape under Octavo's config keys (hidden_size, num_heads, ...).
nlohmann::json model_config_to_json(const ModelConfig& config);
// InputError when a field without a default is missing, or what ModelConfig::validate refuses.
ModelConfig model_config_from_json(const nlohmann::json& json);

// InputError naming the first field in which a checkpoint's model differs from the run's, with both values.
void check_same_model(const ModelConfig& checkpoint, const ModelConfig& run, const std::string& checkpoint_path);

std::string step_directory_name(int64_t step);  // "step_00000500"
std::string shard_name(int rank);               // "rank_00000.safetensors"
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kTemporaryPrefix = ".tmp_";
inline constexpr const char* kReplacedPrefix = ".old_";
inline constexpr const char* kProbePrefix = ".seen_by_all_ranks_";  // files by which ranks tell that they share it
inline constexpr const char* kDamagedPrefix = "damaged_";
inline constexpr const char* kEarlierName = "earlier";

}  // namespace octavo

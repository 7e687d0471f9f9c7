// The format of a checkpoint on disk, for the code that writes and reads it.
//
//   DIR/step_00000500/manifest.json            written last: a directory with a manifest is complete
//                     rank_00000.safetensors   the pieces that rank 0 wrote; one file per rank that wrote any
//                     tokenizer.json           a file attached to the checkpoint (AttachedFile), if there is one
//   DIR/.tmp_step_00000500                     being written, or left by a crash
//   DIR/.old_step_00000500                     being replaced by a new checkpoint of the same step
//   DIR/damaged_step_00000500                  skipped by a resume; ..._2 and so on if that name is taken
//   DIR/earlier/step_00000500                  of a run that a new one does not continue; earlier_2 and so on
//   DIR/lock                                   held by the run that writes here (checkpoint/directory_lock.h)
//
// A tensor has a name, a global shape and pieces. A piece is a range of elements of the flattened tensor, or of some
// columns of a 2-dimensional tensor, flattened row by row (checkpoint/tensor_slice.h). It is stored under a key of a
// shard. The pieces of one range of columns contain each of its elements once, and the ranges of columns contain each
// column once. So a reader needs to know nothing about the mesh that wrote the checkpoint. Names: a parameter's Hugging
// Face name for its float32 master weights, and OptimizerState::name + "." + name for the optimizer's states.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/dtype.h"
#include "core/error.h"
#include "core/tensor.h"
#include "model/architecture/config.h"
#include "model/architecture/tensor_parallel.h"

namespace octavo {

// Amax history of delayed scaling, [amax_history, slots].
inline constexpr const char* kAmaxHistory = "fp8.amax_history";

// Error for contents that no completed save writes: a flipped bit, a missing or truncated file, an incomplete manifest.
// A file that cannot be read is another InputError, because the next attempt may succeed.
class DamagedCheckpoint : public InputError {
 public:
  using InputError::InputError;
};

struct CheckpointPiece {
  std::string file;   // Shard file in the checkpoint directory.
  std::string key;    // Name of the tensor in the shard.
  int64_t begin = 0;  // First element of the flattened tensor, or of its flattened columns if there are any.
  int64_t end = 0;
  std::string checksum;      // XXH3 64 of the piece's bytes, 16 hex digits.
  ColumnRange columns = {};  // Empty means all columns. "columns": [begin, end] in the manifest if not empty.
};

struct CheckpointTensorInfo {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = DType::kFloat32;
  std::vector<CheckpointPiece> pieces;  // Sorted by columns and element. Together they cover the tensor exactly once.

  int64_t numel() const { return numel_of(shape); }
};

// A shard of a checkpoint, or an attached file, as the manifest lists it.
struct ListedFile {
  std::string name;  // File name in the checkpoint directory.
  int64_t bytes = 0;
  std::string checksum;  // Checksum of the safetensors header of a shard, or of the whole content of an attached file.
};

// A file that is attached to a checkpoint in addition to its tensors, such as a tokenizer, so that the checkpoint is
// complete wherever it is moved.
struct AttachedFile {
  std::string name;  // File name in the checkpoint directory.
  std::string content;
};

struct CheckpointManifest {
  int64_t step = 0;
  ModelConfig model;
  int ranks = 1;        // Number of ranks that wrote the checkpoint.
  nlohmann::json meta;  // Data of the trainer: config, loader and random state, tokens seen.
  std::vector<ListedFile> shards;
  std::vector<CheckpointTensorInfo> tensors;
  // Attached files. The JSON has the key "files" only if there are some.
  std::vector<ListedFile> files = {};
  std::string checksum = {};  // Checksum of the manifest that was read.
};

// Converts a manifest to JSON text. The text contains a checksum of its other content (without white space, with sorted
// keys), so that a damaged manifest is never used. The text is written and read tensor by tensor, because with
// thousands of ranks it has hundreds of megabytes, and a JSON tree would need ten times as much memory.
std::string manifest_to_text(const CheckpointManifest& manifest);
// Returns whether the JSON claims to be a manifest, damaged or not.
bool is_checkpoint_manifest(const nlohmann::json& json);
// Parses a manifest. Throws DamagedCheckpoint with `path` and the reason if the text is not a manifest, its checksum is
// wrong, it is not complete, or its model is invalid or has more layers than there are tensors. Throws an InputError
// if this build does not read its version.
CheckpointManifest manifest_from_text(std::string_view text, const std::string& path);

// Returns one rank's part of the manifest, its shard and pieces, to be sent to the rank that writes the manifest.
nlohmann::json manifest_part_to_json(const CheckpointManifest& part);
// Combines the parts of the manifest that the ranks wrote.
class ManifestParts {
 public:
  // Requires: `manifest` outlives the object.
  explicit ManifestParts(CheckpointManifest& manifest);
  // Adds a rank's shards and pieces. Throws if a tensor's shape or dtype differs between ranks.
  void add(const nlohmann::json& part);
  void add_tensor(const nlohmann::json& tensor);

 private:
  CheckpointManifest* manifest_;
  std::unordered_map<std::string, size_t> index_;  // Index in the manifest's tensors by name.
};
// Sorts the pieces. Throws an Error unless they cover each tensor exactly once with columns that exist, and each has a
// checksum and lies in a listed shard with a checksum. A piece of all columns of a tensor gets empty `columns`. Every
// manifest is checked before it is written and after it is read.
void check_complete(CheckpointManifest& manifest);

// Returns the model's shape under Octavo's config keys (hidden_size, num_heads, ...).
nlohmann::json model_config_to_json(const ModelConfig& config);
// Throws an InputError if a field without a default is missing, and for models that ModelConfig::validate refuses.
ModelConfig model_config_from_json(const nlohmann::json& json);

// Throws an InputError that names the first field in which the models of the checkpoint and the run differ, with both
// values.
void check_same_model(const ModelConfig& checkpoint, const ModelConfig& run, const std::string& checkpoint_path);

std::string step_directory_name(int64_t step);  // Returns "step_00000500".
std::string shard_name(int rank);               // Returns "rank_00000.safetensors".
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kTemporaryPrefix = ".tmp_";
inline constexpr const char* kReplacedPrefix = ".old_";
// Prefix of the files by which ranks test whether they share the directory.
inline constexpr const char* kProbePrefix = ".seen_by_all_ranks_";
inline constexpr const char* kDamagedPrefix = "damaged_";
inline constexpr const char* kEarlierName = "earlier";

}  // namespace octavo

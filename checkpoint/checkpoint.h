// Reads a checkpoint (checkpoint/checkpoint_format.h): any range of elements of any tensor, or of some of its columns,
// whatever mesh wrote it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "checkpoint/checkpoint_files.h"
#include "checkpoint/checkpoint_format.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/tensor_reader.h"
#include "checkpoint/tensor_slice.h"
#include "core/tensor.h"

namespace octavo {

// Elements [begin, end) of the flattened tensor with that name and shape, or of some of its columns.
struct TensorPart {
  std::string name;
  std::vector<int64_t> shape;
  ColumnRange columns;
  int64_t begin = 0;
  int64_t end = 0;
};

// Which weights of a checkpoint to read: the master weights, or their moving average (optimizer.ema_decay).
enum class SavedWeights : uint8_t { kMaster, kEma };

// Holds the manifest and maps a shard when it is first read. Move-only, used by one thread. Errors are InputErrors that
// name the file. They are DamagedCheckpoint for a damaged manifest and for a missing, resized or damaged shard or file,
// but not for a file that cannot be accessed.
class Checkpoint {
 public:
  // Opens `path`: a checkpoint, or the newest complete checkpoint of a directory.
  explicit Checkpoint(const std::filesystem::path& path);
  // Opens a checkpoint whose manifest was already read. Accesses no file.
  explicit Checkpoint(const ManifestFile& manifest);

  // Returns the newest complete checkpoint of a directory, or nothing if there is none or no such directory.
  static std::optional<std::filesystem::path> newest(const std::filesystem::path& dir);
  // Returns `path` if it is a checkpoint, and otherwise the newest complete checkpoint in it. Throws an InputError if
  // there is none.
  static std::filesystem::path resolve(const std::filesystem::path& path);
  // Returns whether the path is a checkpoint or a directory that contains one.
  static bool exists(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  int64_t step() const { return manifest_.step; }
  int ranks() const { return manifest_.ranks; }
  // Returns path, step and the manifest's checksum, which identify the checkpoint and all of its contents in messages.
  std::string identity() const;
  const ModelConfig& model_config() const { return manifest_.model; }
  const nlohmann::json& meta() const { return manifest_.meta; }
  const std::vector<CheckpointTensorInfo>& tensors() const { return manifest_.tensors; }
  const std::vector<CheckpointShard>& shards() const { return manifest_.shards; }
  // Returns the files that the checkpoint carries in addition to its tensors.
  const std::vector<CarriedFileInfo>& files() const { return manifest_.files; }
  // Returns the content of a carried file after comparing its checksum. A link is refused, because it could lead out of
  // the checkpoint.
  std::string read_file(const CarriedFileInfo& file) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }
  const CheckpointTensorInfo* find(std::string_view name) const;  // Returns null if there is no such tensor. Borrowed.
  // Returns whether the checkpoint has a moving average of the weights.
  bool has_average() const;
  // Returns the prefix of parameter names for these weights. Throws an InputError if the checkpoint does not have them.
  std::string prefix(SavedWeights which) const;

  // Reads elements [begin, end) of the flattened tensor into host memory as float32, or as the dtype of `out` (float32,
  // bfloat16, or the stored dtype). Every piece that the range touches is compared with its checksum, completely and
  // once. Throws an InputError that names the element if one is NaN or infinite.
  void read(std::string_view name, int64_t begin, int64_t end, float* out);
  void read(std::string_view name, int64_t begin, int64_t end, const Tensor& out);
  // Reads elements [begin, end) of some columns of a 2-dimensional tensor, flattened row by row, whatever columns the
  // tensor is stored in. If the columns differ, each row is copied separately from each stored range of columns.
  void read(std::string_view name, ColumnRange columns, int64_t begin, int64_t end, float* out);
  void read(std::string_view name, ColumnRange columns, int64_t begin, int64_t end, const Tensor& out);

  // Returns a reader of the elements [begin, end) of some columns, or of a whole tensor if there are no columns. It
  // compares the checksums of the pieces that verify() has not compared before.
  TensorReader reader(std::string_view name, ColumnRange columns, int64_t begin, int64_t end);

  // Compares the checksums of all pieces that the given parts touch, in parallel, and throws an InputError
  // for the first damage. Skips parts of tensors that the checkpoint does not have, or has in another shape. Later
  // read() calls come from the page cache. Each process must verify what it uses, because another process may be on a
  // machine that reads other bytes.
  void verify(std::span<const TensorPart> parts);
  // Verifies all tensors and files of the checkpoint.
  void verify();
  // Returns the shards that contain some of the given parts.
  std::set<std::string> shards_with(std::span<const TensorPart> parts) const;
  // Returns what `octavo inspect` prints: path, step, model, parameters, tensors, bytes, ranks, tokens if meta has
  // them, and intact: true, or intact: false with the damage.
  nlohmann::json describe();

 private:
  const SafetensorsFile& shard(const std::string& name);
  // Returns the check of a piece after comparing its entry in the shard with the manifest.
  PieceCheck piece_check(const CheckpointTensorInfo& tensor, const CheckpointPiece& piece);
  // Visits the pieces that contain some of the elements [begin, end) of these columns.
  using VisitPiece = std::function<void(const CheckpointPiece& piece, const TensorSlice& stored)>;
  void for_each_piece(const CheckpointTensorInfo& tensor, ColumnRange columns, int64_t begin, int64_t end,
                      const VisitPiece& visit) const;
  // Visits each piece that the parts touch, once for each of these parts.
  using VisitTensorPiece = std::function<void(const CheckpointTensorInfo& tensor, const CheckpointPiece& piece)>;
  void for_each_piece(std::span<const TensorPart> parts, const VisitTensorPiece& visit) const;

  std::filesystem::path path_;
  CheckpointManifest manifest_;
  std::map<std::string, size_t, std::less<>> index_;     // Index in manifest_.tensors by name.
  std::unordered_map<std::string, size_t> shard_index_;  // Index in manifest_.shards by file.
  std::map<std::string, SafetensorsFile> shards_;
  std::unordered_set<const CheckpointPiece*> verified_;  // Pieces whose checksums this process has verified.
};

}  // namespace octavo

// Reads a checkpoint (checkpoint/checkpoint_format.h): any element range of any tensor or of some of its columns,
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
#include "checkpoint/tensor_slice.h"
#include "core/tensor.h"

namespace octavo {

// Elements [begin, end) of a flattened tensor of that name and shape, or of some of its columns.
struct TensorPart {
  std::string name;
  std::vector<int64_t> shape;
  ColumnRange columns;
  int64_t begin = 0;
  int64_t end = 0;
};

// The weights of a checkpoint: the master weights, or their moving average (optimizer.ema_decay).
enum class SavedWeights : uint8_t { kMaster, kEma };

// Holds the manifest; shards are mapped when first read. Move-only, used by one thread. What is wrong with a checkpoint
// is an InputError naming the file: DamagedCheckpoint for a damaged manifest and a missing, resized or damaged shard or
// carried file, but not for what cannot be looked at.
class Checkpoint {
 public:
  // `path`: a checkpoint, or a directory of them, of which the newest complete one is taken.
  explicit Checkpoint(const std::filesystem::path& path);
  // One whose manifest is at hand: nothing is read.
  explicit Checkpoint(const ManifestFile& manifest);

  // The newest complete checkpoint of a directory of checkpoints; none when there is none or no such directory.
  static std::optional<std::filesystem::path> newest(const std::filesystem::path& dir);
  // `path` where it is a checkpoint, or the newest complete one in it. InputError when there is none.
  static std::filesystem::path resolve(const std::filesystem::path& path);
  // Whether the path is a checkpoint or a directory that has one.
  static bool exists(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  int64_t step() const { return manifest_.step; }
  int ranks() const { return manifest_.ranks; }
  // Path, step and the manifest's checksum, and so those of all pieces: what a message tells it from another by.
  std::string identity() const;
  const ModelConfig& model_config() const { return manifest_.model; }
  const nlohmann::json& meta() const { return manifest_.meta; }
  const std::vector<CheckpointTensorInfo>& tensors() const { return manifest_.tensors; }
  const std::vector<CheckpointShard>& shards() const { return manifest_.shards; }
  // The files that it carries beside its tensors.
  const std::vector<CarriedFileInfo>& files() const { return manifest_.files; }
  // The content of one of them, compared with its checksum. A link is refused: it could lead out of the checkpoint.
  std::string read_file(const CarriedFileInfo& file) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }
  const CheckpointTensorInfo* find(std::string_view name) const;  // null when there is none; borrowed
  // Whether it has a moving average of the weights.
  bool has_average() const;
  // What stands before a parameter's name. InputError where the checkpoint has no such weights.
  std::string prefix(SavedWeights which) const;

  // Elements [begin, end) of the flattened tensor into host memory, converted to float32, or to `out`'s dtype (float32,
  // bfloat16, or as stored). A piece that the range touches is compared with its checksum, whole and once. InputError
  // naming the element where one is NaN or infinite.
  void read(std::string_view name, int64_t begin, int64_t end, float* out);
  void read(std::string_view name, int64_t begin, int64_t end, const Tensor& out);
  // The same of some columns of a 2-dimensional tensor, flattened row by row: elements [begin, end) of `columns`, in
  // whatever columns the tensor is stored. Where they differ, a row is copied by itself from each range of columns.
  void read(std::string_view name, ColumnRange columns, int64_t begin, int64_t end, float* out);
  void read(std::string_view name, ColumnRange columns, int64_t begin, int64_t end, const Tensor& out);

  // Compares the checksums of all pieces that some parts of tensors touch, InputError for the first damage. Parts
  // of tensors that the checkpoint does not have, or has in another shape, are left out. Reads several pieces at once:
  // what is read() after it comes from the page cache. Each process verifies what it uses: another one may be on a
  // machine that reads other bytes.
  void verify(std::span<const TensorPart> parts);
  // Verifies all tensors and files.
  void verify();
  // The shards that have something of some parts.
  std::set<std::string> shards_with(std::span<const TensorPart> parts) const;
  // What `octavo inspect` prints: path, step, model, parameters, tensors, bytes, ranks, tokens if meta has them, and
  // intact: true, or intact: false with the damage.
  nlohmann::json describe();

 private:
  // What of `wanted`, which goes to `out`, the piece holds.
  void read_piece(const CheckpointTensorInfo& tensor, const CheckpointPiece& piece, const TensorSlice& wanted,
                  const Tensor& out);
  const SafetensorsFile& shard(const std::string& name);
  // The bytes of a piece as stored, its entry checked against the manifest.
  std::span<const std::byte> piece_bytes(const CheckpointTensorInfo& tensor, const CheckpointPiece& piece);
  void verify_piece(const CheckpointTensorInfo& tensor, const CheckpointPiece& piece);
  void check_piece(const CheckpointPiece& piece, std::span<const std::byte> bytes) const;
  // Visits each piece that some parts touch, once for each of these parts.
  using VisitPiece = std::function<void(const CheckpointTensorInfo& tensor, const CheckpointPiece& piece)>;
  void for_each_piece(std::span<const TensorPart> parts, const VisitPiece& visit) const;

  std::filesystem::path path_;
  CheckpointManifest manifest_;
  std::map<std::string, size_t, std::less<>> index_;     // of manifest_.tensors by name
  std::unordered_map<std::string, size_t> shard_index_;  // of manifest_.shards by file
  std::map<std::string, SafetensorsFile> shards_;
  std::unordered_set<const CheckpointPiece*> verified_;  // by this process
};

}  // namespace octavo

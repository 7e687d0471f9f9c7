// Reads a checkpoint (checkpoint/checkpoint_format.h): any range of elements of any tensor, or of some of its columns,
// whatever mesh wrote it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_files.h"
#include "checkpoint/checkpoint_format.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/tensor_slice.h"
#include "core/files/checksum.h"
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

// Number of threads that read tensors or pieces of a checkpoint at the same time.
inline constexpr size_t kReadingThreads = 8;

// Compares the bytes of a piece, in a mapped file, with the piece's checksum. Move-only.
class PieceCheck {
 public:
  // `shard` is the path of the file for messages.
  // Requires: `piece` outlives the object.
  PieceCheck(const CheckpointPiece& piece, std::string shard, std::span<const std::byte> bytes)
      : piece_(&piece), shard_(std::move(shard)), bytes_(bytes) {}

  const CheckpointPiece& piece() const { return *piece_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  // Adds the bytes up to `end` to the checksum, in order. Does nothing if they were added before.
  void add_up_to(int64_t end);
  // Adds all remaining bytes and throws DamagedCheckpoint if the checksum differs.
  void finish();

 private:
  const CheckpointPiece* piece_;
  std::string shard_;
  std::span<const std::byte> bytes_;
  std::unique_ptr<Checksum> checksum_;  // Checksum of the bytes up to added_. Null before the first ones.
  int64_t added_ = 0;
  int64_t read_ahead_ = 0;  // End of the bytes that the system was asked to read ahead.
};

// Reads a part of a tensor and compares its checksums in the same read: each range of elements is read from the disk,
// added to the checksum of its piece, copied, and checked for values that are not finite, before the next range is
// read. Checkpoint::reader() makes one. Different threads may use different readers at the same time.
// Requires: the checkpoint outlives its readers.
class TensorReader {
 public:
  // Reads elements [begin, end) into host memory as the dtype of `out` (float32, bfloat16, or the stored dtype). The
  // last call throws a DamagedCheckpoint if a piece that the part touches is damaged anywhere, and otherwise an
  // InputError that names the first element of the part that is NaN or infinite. Values are verified only then.
  // Requires: the ranges of several calls follow each other from the beginning to the end of the reader's part.
  void read(int64_t begin, int64_t end, const Tensor& out);

 private:
  friend class Checkpoint;

  struct Source {
    TensorSlice slice;  // Elements of the tensor that the piece contains.
    PieceCheck check;
    bool is_verified;  // Whether the checksum was compared before.
  };
  TensorReader(std::string where, const CheckpointTensorInfo& tensor, ColumnRange columns, int64_t end)
      : where_(std::move(where)), tensor_(&tensor), columns_(columns), end_(end) {}

  std::string where_;  // Names the tensor in messages.
  const CheckpointTensorInfo* tensor_;
  ColumnRange columns_;
  int64_t end_;
  std::vector<Source> sources_;    // Pieces that the part touches.
  std::exception_ptr not_finite_;  // Error for the first element that is not finite.
};

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

  const std::filesystem::path& path() const { return path_; }
  int64_t step() const { return manifest_.step; }
  int ranks() const { return manifest_.ranks; }
  // Returns path, step and the manifest's checksum, which identify the checkpoint and all of its contents in messages.
  std::string identity() const;
  const ModelConfig& model_config() const { return manifest_.model; }
  const nlohmann::json& meta() const { return manifest_.meta; }
  const std::vector<CheckpointTensorInfo>& tensors() const { return manifest_.tensors; }
  const std::vector<ListedFile>& shards() const { return manifest_.shards; }
  // Returns the files that are attached to the checkpoint in addition to its tensors.
  const std::vector<ListedFile>& files() const { return manifest_.files; }
  // Returns the content of an attached file after comparing its checksum. A link is refused, because it could lead out
  // of the checkpoint.
  std::string read_file(const ListedFile& file) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }
  const CheckpointTensorInfo* find(std::string_view name) const;  // Returns null if there is no such tensor. Borrowed.
  // Returns whether the checkpoint has a moving average of the weights.
  bool has_average() const;
  // Returns the prefix of parameter names for these weights. Throws an InputError if the checkpoint does not have them.
  std::string prefix(SavedWeights which) const;

  // Reads elements [begin, end) of some columns of a 2-dimensional tensor, flattened row by row, or of a whole tensor
  // if there are no columns, into host memory as the dtype of `out` (float32, bfloat16, or the stored dtype). The
  // tensor may be stored in other columns, which takes one copy per row and range. Every piece that the range touches
  // is compared with its checksum, completely and once. Throws an InputError that names the element if one is NaN or
  // infinite.
  void read(std::string_view name, ColumnRange columns, int64_t begin, int64_t end, const Tensor& out);
  void read(std::string_view name, ColumnRange columns, int64_t begin, int64_t end, float* out) {
    read(name, columns, begin, end, Tensor(out, DType::kFloat32, {end - begin}));
  }

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
  std::map<std::string, size_t, std::less<>> index_;  // Index in manifest_.tensors by name.
  std::map<std::string, SafetensorsFile> shards_;
  std::unordered_set<const CheckpointPiece*> verified_;  // Pieces whose checksums this process has verified.
};

}  // namespace octavo

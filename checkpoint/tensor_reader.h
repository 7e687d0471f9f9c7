// Reads a part of a tensor of a checkpoint and compares its checksums in the same read: each range of elements is read
// from the disk, added to the checksum of its piece, copied, and checked for values that are not finite, before the
// next range is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_format.h"
#include "checkpoint/tensor_slice.h"
#include "core/files/checksum.h"
#include "core/tensor.h"

namespace octavo {

// Number of threads that read tensors or pieces of a checkpoint at the same time.
inline constexpr size_t kReadingThreads = 8;

// Compares the bytes of a piece, in a mapped file, with the piece's checksum. Move-only.
class PieceCheck {
 public:
  // `shard` is the path of the file for messages. The piece must outlive the object.
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
  int64_t read_ahead_ = 0;  // Bytes that the system was asked to read.
};

// Checkpoint::reader() makes one. Different threads may use different readers at the same time. The checkpoint must
// outlive its readers.
class TensorReader {
 public:
  // Reads elements [begin, end) into host memory as the dtype of `out` (float32, bfloat16, or the stored dtype). The
  // ranges of several calls must follow each other from the beginning to the end of the reader's part. The last call
  // throws a DamagedCheckpoint if a piece that the part touches is damaged anywhere, and otherwise an InputError that
  // names the first element of the part that is NaN or infinite. Values are not verified before.
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

}  // namespace octavo

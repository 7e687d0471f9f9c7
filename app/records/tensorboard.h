// TensorBoard event files, written without TensorFlow or a protobuf library.
//
// A file is a sequence of TFRecords (tensorflow/core/lib/io/record_writer.h):
//   u64 length, u32 masked_crc(the 8 length bytes), length bytes, u32 masked_crc(those bytes), all little-endian,
//   masked_crc(x) = rotate_right(crc32c(x), 15) + 0xa282ead8,
// each holding one serialized Event (tensorflow/core/util/event.proto). The fields used here:
//   Event   { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5; }
//   Summary { repeated Value value = 1; }
//   Value   { string tag = 1; float simple_value = 2; }
// The first Event contains only file_version "brain.Event:2".
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "app/records/append_file.h"
#include "app/records/metric_row.h"

namespace octavo {

// Returns the CRC-32C of `bytes` (Castagnoli, reflected polynomial 0x1EDC6F41, as in iSCSI, RFC 3720).
uint32_t crc32c(std::string_view bytes);

// Not movable, and not thread-safe. An event that cannot be written is kept in memory (AppendFile).
class TensorBoardWriter {
 public:
  // Creates events.out.tfevents.<seconds>.<host>.<pid> in `dir`, and `dir` itself. Adds a number if the file exists.
  // Throws an InputError if the file cannot be created.
  explicit TensorBoardWriter(const std::string& dir);

  // Writes all scalars of a step as one event with the current time.
  void write(int64_t step, std::span<const Scalar> scalars);
  AppendFile& file() { return file_; }
  const AppendFile& file() const { return file_; }

 private:
  void write_record(std::string_view event);

  AppendFile file_;
};

}  // namespace octavo

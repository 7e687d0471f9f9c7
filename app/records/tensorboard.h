// TensorBoard event files, written without TensorFlow or a protobuf library.
//
// A file is a sequence of TFRecords (tensorflow/core/lib/io/record_writer.h):
//   u64 length, u32 masked_crc(the 8 length bytes), length bytes, u32 masked_crc(those bytes), all little-endian,
//   masked_crc(x) = rotate_right(crc32c(x), 15) + 0xa282ead8,
// each holding one serialized Event (tensorflow/core/util/event.proto). The fields used here:
//   Event   { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5; }
//   Summary { repeated Value value = 1; }
//   Value   { string tag = 1; float simple_value = 2; TensorProto tensor = 8; SummaryMetadata metadata = 9; }
// and of a text, which TensorBoard's plugin of that name shows,
//   TensorProto     { DataType dtype = 1; TensorShapeProto tensor_shape = 2; repeated bytes string_val = 8; }
//   SummaryMetadata { PluginData plugin_data = 1; }   PluginData { string plugin_name = 1; }
// The first Event has file_version "brain.Event:2" alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "app/records/append_file.h"

namespace octavo {

// CRC-32C (Castagnoli, polynomial 0x1EDC6F41 reflected, as in iSCSI, RFC 3720).
uint32_t crc32c(std::string_view bytes);

struct Scalar {
  std::string tag;
  double value;
};

// Not movable; used by one thread. Every event reaches the system before write() returns, or is kept (AppendFile).
class TensorBoardWriter {
 public:
  // Creates a new events.out.tfevents.<seconds>.<host>.<pid> in `dir` (and `dir` itself), with a number added where
  // that exists. Throws InputError when it cannot be created.
  explicit TensorBoardWriter(const std::string& dir);

  const std::string& path() const { return file_.path(); }
  // All scalars of one step as one event, stamped with the present time.
  void write(int64_t step, std::span<const Scalar> scalars);
  // A text in Markdown.
  void write_text(int64_t step, const std::string& tag, std::string_view markdown);
  AppendFile& file() { return file_; }
  const AppendFile& file() const { return file_; }

 private:
  void write_summary(int64_t step, std::string_view summary);
  void write_record(std::string_view event);

  AppendFile file_;
};

}  // namespace octavo

// The safetensors file format (github.com/huggingface/safetensors): 8 bytes little-endian header length n, n bytes of
// JSON mapping each tensor's name to its dtype, shape and byte range, then the bytes of the tensors one after the
// other, row-major and little-endian, without gaps. Checkpoint shards and Hugging Face weights are such files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/mapped_file.h"
#include "core/files/output_file.h"
#include "core/tensor.h"

namespace octavo {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;           // as in the file: "F32", "BF16", "F16", "F64", "I64", ...
  std::vector<int64_t> shape;  // empty: a scalar
  int64_t begin_byte = 0;      // range within the data section; the writer fills these in
  int64_t end_byte = 0;

  int64_t numel() const;
};

// The format's name of a dtype ("F32"), and the other way; the latter throws InputError for one that Octavo cannot
// hold.
const char* safetensors_dtype(DType dtype);

// "[4, 128]", for messages.
std::string describe_shape(std::span<const int64_t> shape);

// `count` elements of `dtype` (F64, F32, F16, BF16, integers) at `source`, which need not be aligned, as float32: exact
// but for F64 and large integers, which are rounded to nearest. `where` names the tensor in the InputError for other
// dtypes.
void convert_to_float32(std::string_view dtype, const std::byte* source, int64_t count, float* out,
                        const std::string& where);

// A file opened for reading, mapped into memory. The constructor checks everything but the values: header length, JSON,
// known dtypes, shapes that agree with byte ranges, ranges that cover the data section exactly once. Every fault is an
// InputError naming the file. Move-only; reading is safe from any thread.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  int64_t size_bytes() const { return file_.size_bytes(); }
  std::string_view header() const;  // the JSON text, padding included
  const std::map<std::string, SafetensorsEntry, std::less<>>& entries() const { return entries_; }
  const SafetensorsEntry* find(std::string_view name) const;  // null when there is none; borrowed
  // Whether its metadata says that Octavo wrote it.
  bool is_ours() const { return is_ours_; }

  // The bytes of an entry of this file, in the mapping.
  std::span<const std::byte> bytes(const SafetensorsEntry& entry) const;
  // Elements [begin, end) of the flattened tensor as float32.
  void read(const SafetensorsEntry& entry, int64_t begin, int64_t end, float* out) const;

 private:
  void parse_header();
  void check_ranges() const;

  MappedFile file_;
  int64_t header_bytes_ = 0;
  std::map<std::string, SafetensorsEntry, std::less<>> entries_;
  bool is_ours_ = false;
};

// What a file of these entries begins with, whose byte ranges are assigned here: the length of the header, and the
// header, padded with spaces so that the data section starts at a multiple of 8 bytes. The tensors follow, in this
// order.
inline constexpr int64_t kSafetensorsLengthBytes = 8;
std::string begin_safetensors(std::vector<SafetensorsEntry>& entries);

// Writes a file tensor by tensor, in the order announced, holding none of them. The file appears under its name only
// when commit() is reached.
class SafetensorsWriter {
 public:
  // `entries`: names, dtypes and shapes; byte ranges are assigned here. InputError when the file cannot be created.
  SafetensorsWriter(const std::string& path, std::vector<SafetensorsEntry> entries);

  std::string_view header() const { return header_; }
  int64_t size_bytes() const;  // of the whole file

  // The next bytes of the data section. Error naming the file when the system refuses (a full disk).
  void write(const void* bytes, int64_t count);
  // Everything down to the device, then closed. Error unless exactly the announced bytes were written.
  void finish();
  // Gives the finished file its name, replacing an older one.
  void rename() { file_.rename(); }
  void commit() {
    finish();
    rename();
  }

 private:
  int64_t data_bytes_ = 0;  // before header_, whose making sets it
  std::string header_;
  OutputFile file_;
  int64_t written_bytes_ = 0;
};

}  // namespace octavo

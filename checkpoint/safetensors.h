// The safetensors file format (github.com/huggingface/safetensors): 8 bytes with the header length n (little-endian), n
// bytes of JSON that map each tensor's name to its dtype, shape and byte range, and the bytes of the tensors in order,
// row-major and little-endian, without gaps. Checkpoint shards and Hugging Face weights are such files.
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
  std::string dtype;           // Name in the file: "F32", "BF16", "F16", "F64", "I64", ...
  std::vector<int64_t> shape;  // Shape of the tensor. Empty for a scalar.
  int64_t begin_byte = 0;      // First byte in the data section. The writer sets it.
  int64_t end_byte = 0;

  int64_t numel() const { return numel_of(shape); }
};

// Returns the format's name of a dtype, such as "F32".
const char* safetensors_dtype(DType dtype);

// Converts `count` elements of `dtype` (F64, F32, F16, BF16, integers) at `source`, which need not be aligned, to
// float32. F64 and large integers are rounded to nearest, all others are exact. `where` names the tensor in the
// InputError for other dtypes.
void convert_to_float32(std::string_view dtype, const std::byte* source, int64_t count, float* out,
                        const std::string& where);

// A file that is open for reading, mapped into memory. The constructor checks everything except the values: header
// length, JSON, known dtypes, shapes that agree with byte ranges, ranges that cover the data section exactly once.
// Errors are InputErrors that name the file. Move-only. Reading is safe from any thread.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  int64_t size_bytes() const { return file_.size_bytes(); }
  std::string_view header() const;  // Returns the JSON text of the header, padding included.
  const std::map<std::string, SafetensorsEntry, std::less<>>& entries() const { return entries_; }
  const SafetensorsEntry* find(std::string_view name) const;  // Returns null if there is none. Borrowed.
  // Returns whether the metadata says that Octavo wrote the file.
  bool is_ours() const { return is_ours_; }

  // Returns the bytes of an entry of this file, in the mapping.
  std::span<const std::byte> bytes(const SafetensorsEntry& entry) const;
  // Reads elements [begin, end) of the flattened tensor as float32.
  void read(const SafetensorsEntry& entry, int64_t begin, int64_t end, float* out) const;

 private:
  void parse_header();
  void check_ranges() const;

  MappedFile file_;
  int64_t header_bytes_ = 0;
  std::map<std::string, SafetensorsEntry, std::less<>> entries_;
  bool is_ours_ = false;
};

inline constexpr int64_t kSafetensorsLengthBytes = 8;  // Size of the length of the header, at the beginning of a file.
// Sets the byte ranges of the entries of a file and returns its beginning: the length of the header, and the header,
// padded with spaces so that the data section starts at a multiple of 8 bytes. The tensors must follow in this order.
std::string begin_safetensors(std::vector<SafetensorsEntry>& entries);

// Writes a file tensor by tensor in the given order, without holding the tensors in memory. The file gets its name in
// rename().
class SafetensorsWriter {
 public:
  // `entries` has names, dtypes and shapes; the constructor sets byte ranges. Throws an InputError if the file cannot
  // be created.
  SafetensorsWriter(const std::string& path, std::vector<SafetensorsEntry> entries);

  // Returns the JSON text of the header, padding included.
  std::string_view header() const { return std::string_view(beginning_).substr(kSafetensorsLengthBytes); }
  int64_t size_bytes() const { return std::ssize(beginning_) + data_bytes_; }  // Returns the size of the whole file.

  // Appends bytes to the data section. Throws an Error that names the file if the system refuses (a full disk).
  void write(const void* bytes, int64_t count);
  // Writes everything to the device and closes the file. Throws an Error unless exactly the announced bytes were
  // written.
  void finish();
  // Gives the finished file its name, replacing an older one.
  void rename() { file_.rename(); }
  void commit() {
    finish();
    rename();
  }

 private:
  std::string beginning_;  // Beginning of the file, before the data.
  int64_t data_bytes_;
  OutputFile file_;
  int64_t written_bytes_ = 0;
};

}  // namespace octavo

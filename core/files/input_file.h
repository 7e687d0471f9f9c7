// Files that users name, opened for reading. Only regular files are accepted, because a FIFO, a socket or a device may
// never end or may block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "core/error.h"

namespace octavo {

// Error for a file that does not exist, cannot be read or is not regular. Its message names the file.
class UnreadableFile : public InputError {
 public:
  using InputError::InputError;
};

// A file that is open for reading. Used by one thread. The constructor and all reads throw UnreadableFile.
class InputFile {
 public:
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  // Returns the size when the file was opened; 0 for files of /proc.
  int64_t size_bytes() const { return size_bytes_; }

  // Reads bytes from `offset` on into `bytes`, as many as there are, and returns their number. Does not affect where
  // the methods below continue.
  int64_t read_at(int64_t offset, std::span<std::byte> bytes) const;
  // Appends up to `bytes` bytes to `text` and returns their number, which is 0 only at the end of the file.
  int64_t read_some(std::string& text, int64_t bytes);
  // Returns all remaining bytes. Throws an InputError if there are more than `max_bytes`.
  std::string read_all(int64_t max_bytes = std::numeric_limits<int64_t>::max());
  // Reads the next line without its end. Returns false at the end of the file.
  // Requires: read_some() and read_all() are not called on this object.
  bool read_line(std::string& line);

 private:
  std::string path_;
  int descriptor_ = -1;
  int64_t size_bytes_ = 0;
  std::string buffer_;  // Bytes read but not yet returned by read_line, from line_begin_ on.
  size_t line_begin_ = 0;
};

// Returns the whole content of a file.
std::string read_input_file(const std::string& path, int64_t max_bytes = std::numeric_limits<int64_t>::max());

// Returns the whole content of a file of /proc or /sys. Empty if it cannot be read.
std::string read_system_file(const std::string& path);

// path_exists() returns whether there is something at `path`, is_directory_at() whether it is a directory. They throw
// UnreadableFile if this cannot be determined (permission, a loop of links, an I/O error).
bool path_exists(const std::string& path);
bool is_directory_at(const std::string& path);

// Returns the absolute path without links and with a slash at the end. All paths of a directory give the same result.
std::string absolute_path(const std::string& path);
// Returns whether `path` is the directory `dir` or lies inside it.
bool is_inside(const std::string& path, const std::string& dir);

// Returns whether `name`, taken from an untrusted file, is a plain name of a file in a directory: no path, not "." or
// "..", no control characters.
bool is_plain_file_name(std::string_view name);

// Returns the path of the file `name` in `dir`. Throws an InputError if it is a link that leads out of `dir`. Links
// into the `blobs` of a Hugging Face cache of which `dir` is a snapshot are allowed.
std::string path_inside(const std::string& dir, const std::string& name);

}  // namespace octavo

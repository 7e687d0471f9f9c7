// Files that users name, opened for reading. Only a regular file is one: of a FIFO, a socket or a device nobody knows
// whether it ever ends, and opening must not wait.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "core/error.h"

namespace octavo {

// The one error here: the file is not there, not to be read or no regular file. Names it.
class UnreadableFile : public InputError {
 public:
  using InputError::InputError;
};

// Move-only, used by one thread. Throws UnreadableFile.
class InputFile {
 public:
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;

  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  int64_t size_bytes() const { return size_bytes_; }  // when it was opened; 0 for files of /proc

  // All bytes that are left; InputError when they are more than `max_bytes`.
  std::string read_all(int64_t max_bytes = std::numeric_limits<int64_t>::max());
  // The next line, without its end; false when there is none. Do not mix with read_all().
  bool read_line(std::string& line);

 private:
  // Appends up to `bytes` bytes to `text`, and returns how many; 0 only at the end of the file.
  int64_t read_some(std::string& text, int64_t bytes);

  std::string path_;
  int descriptor_ = -1;
  int64_t size_bytes_ = 0;
  std::string buffer_;  // read, but not yet returned by read_line: from line_begin_
  size_t line_begin_ = 0;
};

// The whole content of a file.
std::string read_input_file(const std::string& path, int64_t max_bytes = std::numeric_limits<int64_t>::max());

// The whole content of a file of /proc or /sys. Empty when it cannot be read.
std::string read_system_file(const std::string& path);

// Whether there is something at `path`, and whether that is a directory. Only what is not there is absent: throws
// UnreadableFile when it cannot be told (permission, symbolic links in a loop, an I/O error).
bool path_exists(const std::string& path);
bool is_directory_at(const std::string& path);

// Whether `name`, out of a file of unknown origin, can be that of a file in a directory: no path, not "." or "..",
// without control characters.
bool is_plain_file_name(std::string_view name);

// The path of that file in `dir`. InputError when it is a link that leads out of `dir`, as an archive may hold; links
// into the `blobs` of a Hugging Face cache, of which `dir` is a snapshot, stay inside it.
std::string path_inside(const std::string& dir, const std::string& name);

}  // namespace octavo

// AppendFile is a file that only grows. write() passes each record to the operating system before it returns. If the
// system refuses a record (for example on a full disk), the record is kept in memory and written before the next one or
// when the file is closed, so the order of records never changes. If something removes or replaces the file meanwhile,
// the file is opened again under its path and a warning says so.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace octavo {

// Not movable, and not thread-safe.
class AppendFile {
 public:
  // Opens or creates `path` and its parent directories. Throws an InputError that names the file if that is impossible.
  explicit AppendFile(std::string path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  const std::string& path() const { return path_; }
  // Removes the text after the last newline: an incomplete line that a crash or a full disk left.
  void drop_torn_line();
  // Returns the last `bytes` bytes before the offset `end`, or fewer if the file is shorter.
  std::string read_before(int64_t end, int64_t bytes) const;
  int64_t size_bytes() const;
  // Appends a record after those that are kept. Returns false if anything could not be written; failure() returns the
  // reason.
  bool write(std::string_view record);
  // Writes the records that are kept, if any. Returns false if some still could not be written.
  bool write_kept();
  // Returns the reason why the last write failed, "PATH cannot be written: No space left on device". Empty if it
  // succeeded.
  const std::string& failure() const { return failure_; }
  // Return the number of records that are kept, completely or partly, and of those that were dropped because too many
  // were kept.
  int64_t kept() const { return static_cast<int64_t>(kept_.size()); }
  int64_t dropped() const { return dropped_; }
  // Tries once more to write the records that are kept. If records are lost, adds a sentence with the reason and their
  // number to `sentences`.
  void add_lost_lines(std::vector<std::string>& sentences);

 private:
  // Opens the path again if it no longer names the open file.
  void follow_path();
  std::string path_;
  int descriptor_ = -1;
  std::deque<std::string> kept_;
  int64_t kept_bytes_ = 0;
  bool first_is_partial_ = false;  // Whether the file already contains the beginning of the first kept record.
  int64_t dropped_ = 0;
  bool warned_of_replacement_ = false;
  std::string failure_;
};

}  // namespace octavo

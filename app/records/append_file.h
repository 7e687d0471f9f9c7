// AppendFile: a file that only grows, each write() reaching the system before it returns. What the system refuses (a
// full disk) is kept and written before the next, or when the file is closed, so that the file has everything in order
// once it can be written again.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

namespace octavo {

// Not movable; used by one thread.
class AppendFile {
 public:
  // Opens or creates `path` and the directories above it. Throws InputError naming the file when that is impossible.
  explicit AppendFile(std::string path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  const std::string& path() const { return path_; }
  // Removes what stands after the last newline: a part of a line, which a crash or a full disk left.
  void drop_torn_line();
  // The last `bytes` bytes before `end`, or as many as there are.
  std::string read_before(int64_t end, int64_t bytes) const;
  int64_t size_bytes() const;
  // Appends a record after those that were kept. False when some of it all could not be written: failure() says why.
  bool write(std::string_view record);
  // Writes what was kept, if anything. False when some of it could still not be written.
  bool write_kept();
  // "PATH cannot be written: No space left on device"; of the last write(), empty where it succeeded.
  const std::string& failure() const { return failure_; }
  // Records that are kept in part or whole, and those dropped since there were too many of them.
  int64_t kept() const { return static_cast<int64_t>(kept_.size()); }
  int64_t dropped() const { return dropped_; }

 private:
  std::string path_;
  int descriptor_ = -1;
  std::deque<std::string> kept_;
  int64_t kept_bytes_ = 0;
  bool first_is_partial_ = false;  // of kept_: some of it is in the file
  int64_t dropped_ = 0;
  std::string failure_;
};

}  // namespace octavo

// AppendFile: a file that only grows, each write() reaching the system before it returns.
#pragma once

#include <string>
#include <string_view>

namespace octavo {

// Move-only; used by one thread.
class AppendFile {
 public:
  // Opens or creates `path` and the directories above it. Throws InputError naming the file when that is impossible.
  explicit AppendFile(std::string path);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&& other) noexcept;

  const std::string& path() const { return path_; }
  // Whether the last byte is a newline, or there is no byte.
  bool ends_a_line() const;
  // Appends all of `bytes`. Throws Error naming the file and the reason (a full disk).
  void write(std::string_view bytes);

 private:
  std::string path_;
  int descriptor_ = -1;
};

}  // namespace octavo

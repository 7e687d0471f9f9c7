// A file written under a temporary name and renamed when it is whole, so that a reader (or the next run) never meets
// half a file, whatever interrupts the writer.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace octavo {

// A kind of file that a command writes where its user says, and the content by which the command recognizes one that it
// wrote earlier. Nothing else at such a path is replaced.
struct OutputKind {
  const char* name;  // in messages: "a page of octavo report"
  const char* mark;  // text in the first 64 KiB of each file of this kind and of no other file
};

// InputError unless there is nothing at `path`, an empty file or a file of this kind. A symbolic link is refused too.
void check_output(const std::string& path, const OutputKind& kind);

// Not movable, used by one thread. Writes to PATH.tmp; the destructor removes that file unless rename() was reached.
class OutputFile {
 public:
  // Replaces any file at `path`. InputError when the file cannot be created (no such directory, no permission) or what
  // is at `path` is not a file (a directory, a device, /dev/stdout), Error when the disk is full. What an earlier
  // writer left at PATH.tmp is removed; a link there is not followed.
  explicit OutputFile(std::string path);
  // Replaces only what check_output allows.
  OutputFile(const std::string& path, const OutputKind& kind);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const { return path_; }

  // Appends; buffered. Error naming the file when the system refuses (a full disk).
  void write(const void* bytes, size_t size_bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  template <typename T>
  void write(std::span<const T> values) {
    write(values.data(), values.size_bytes());
  }

  // Writes out everything buffered, down to the device, and closes: after it only rename() is allowed. Error when any
  // byte could not be stored.
  void finish();
  // Moves the finished file to its final name, replacing an older one.
  void rename();

 private:
  friend void rename_together(std::span<OutputFile* const> files);
  void set_old_aside();
  void put_old_back() noexcept;

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  std::string path_, temporary_;
  std::unique_ptr<std::FILE, Close> file_;
  bool renamed_ = false;
  std::string old_;  // where set_old_aside() moved the older file; empty where there was none
};

// Gives finished files their final names in their order. The older files disappear first, in the reverse order. Error
// when the system refuses one of the names; all older files have theirs again then.
void rename_together(std::span<OutputFile* const> files);

// A whole file of this content, down to the device, replacing an older one; that the rename is there too, the caller
// sees to (sync_directory). Throws as OutputFile.
void write_output_file(const std::string& path, std::string_view content);
// Replaces only what check_output allows.
void write_output_file(const std::string& path, const OutputKind& kind, std::string_view content);

}  // namespace octavo

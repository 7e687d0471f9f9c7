// A file that is written under a temporary name and renamed when it is complete, so that no reader ever sees half a
// file, whatever interrupts the writer.
#pragma once

#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace octavo {

// A kind of file that a command writes to a path of the user, with the text by which the command recognizes its own
// earlier files. Nothing else at such a path is replaced.
struct OutputKind {
  const char* name;  // Name in messages: "a page of octavo report".
  const char* mark;  // Text in the first 64 KiB of each file of this kind, and of no other file.
};

// Throws an InputError unless `path` is free or has an empty file or a file of this kind. A symbolic link is refused
// too.
void check_output(const std::string& path, const OutputKind& kind);

// Writes to PATH.tmp. The destructor removes that file unless rename() succeeded. Not movable, used by one thread.
class OutputFile {
 public:
  // Creates PATH.tmp, replacing the remains of an earlier writer. It does not follow a symbolic link there. rename()
  // will replace any file at `path`. Throws an InputError if the file cannot be created (no such directory, no
  // permission) or if `path` is a directory, a device or /dev/stdout, and an Error if the disk is full.
  explicit OutputFile(std::string path);
  // Replaces only what check_output() allows.
  OutputFile(const std::string& path, const OutputKind& kind);
  ~OutputFile();

  const std::string& path() const { return path_; }

  // Appends bytes, buffered. Throws an Error that names the file if the system refuses (a full disk).
  void write(const void* bytes, size_t size_bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  template <typename T>
  void write(std::span<const T> values) {
    write(values.data(), values.size_bytes());
  }

  // Writes all buffered bytes to the device and closes the file. Only rename() is allowed afterwards. Throws an Error
  // if a byte could not be stored.
  void finish();
  // Renames the finished file to its final name, replacing an older one.
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
  std::string old_;  // Path of the older file after set_old_aside(). Empty if there was none.
};

// Gives finished files their final names in order. Older files are moved away first, in reverse order. Throws an Error
// if the system refuses one of the names; all older files then have their names again.
void rename_together(std::span<OutputFile* const> files);

// Writes a whole file to the device, replacing an older one. The caller must sync the directory to make the rename
// durable (sync_directory of checkpoint/checkpoint_files.h). Throws like OutputFile.
void write_output_file(const std::string& path, std::string_view content);
// Replaces only what check_output() allows.
void write_output_file(const std::string& path, const OutputKind& kind, std::string_view content);

}  // namespace octavo

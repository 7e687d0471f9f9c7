// A whole file mapped read-only into memory. The kernel reads pages on demand, and all ranks of a node share them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace octavo {

// Move-only. The address of the bytes does not change when the object is moved. Reading is safe from any thread. If the
// file is truncated while it is mapped, the process prints a sentence that names it and ends with exit code 1. If it is
// written to, the new bytes become visible, so values that were checked must be checked again when they are used.
class MappedFile {
 public:
  MappedFile() = default;
  // Throws an InputError if the file is missing, unreadable or not regular, and an Error if it cannot be mapped.
  explicit MappedFile(const std::string& path);

  const std::string& path() const { return path_; }
  const std::byte* data() const { return data_.get(); }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  struct Unmap {
    size_t size_bytes;
    void operator()(const std::byte* data) const;
  };

  std::string path_;
  std::unique_ptr<const std::byte, Unmap> data_;  // Address of the bytes. Null for an empty file.
  int64_t size_bytes_ = 0;
};

// Makes the system read a part of a mapped file now, in large blocks. Otherwise each page fault would wait for a small
// read. Errors are ignored, because the reader of the bytes meets them again.
void read_ahead(std::span<const std::byte> bytes);

}  // namespace octavo

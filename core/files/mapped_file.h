// A whole file mapped read-only into memory: the kernel pages it in on demand and all ranks of a node share the pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace octavo {

// Move-only. The bytes stay at the same address when the object is moved. Reading is safe from any thread. A
// file that is truncated while it is mapped ends the process with a sentence (core/files/mapping_faults.h); one that is
// written to shows its new bytes, so what was checked of it has to be checked again when it is used.
class MappedFile {
 public:
  MappedFile() = default;
  // InputError when the file is missing, unreadable or not a regular file; Error when it cannot be mapped.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::string& path() const { return path_; }
  const std::byte* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;  // null for an empty file
  int64_t size_bytes_ = 0;
};

}  // namespace octavo

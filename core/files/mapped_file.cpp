#include "core/files/mapped_file.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/files/input_file.h"
#include "core/files/mapping_faults.h"

namespace octavo {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const InputFile file(path);
  size_bytes_ = file.size_bytes();
  if (size_bytes_ == 0) return;  // mmap refuses empty ranges.
  void* address = ::mmap(nullptr, static_cast<size_t>(size_bytes_), PROT_READ, MAP_SHARED, file.descriptor(), 0);
  CHECK(address != MAP_FAILED, "{}: cannot be mapped into memory ({} bytes): {}", path, size_bytes_,
        std::strerror(errno));
  data_ = static_cast<const std::byte*>(address);
  watch_mapping(data_, static_cast<size_t>(size_bytes_), path_);
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  forget_mapping(data_);
  ::munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_bytes_));
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

void read_ahead(std::span<const std::byte> bytes) {
  constexpr uintptr_t kPageBytes = 4096;
  const uintptr_t place = reinterpret_cast<uintptr_t>(bytes.data()), begin = place / kPageBytes * kPageBytes;
  void* address = reinterpret_cast<void*>(begin);
  if (::madvise(address, place - begin + bytes.size(), MADV_POPULATE_READ) == 0) return;
  static_cast<void>(::madvise(address, place - begin + bytes.size(), MADV_WILLNEED));  // Used on Linux before 5.14.
}

}  // namespace octavo

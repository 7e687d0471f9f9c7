#include "core/file_identity.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/error.h"

namespace octavo {
namespace {

constexpr int64_t kBlockBytes = int64_t{1} << 20;
constexpr int64_t kSamples = 64;
constexpr int64_t kSampleBytes = 4096;

// A file whose bytes are hashed as they are read.
class HashedFile {
 public:
  explicit HashedFile(const std::string& path)
      : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)), block_(kBlockBytes) {
    CHECK_INPUT(fd_ >= 0, "{}: cannot be opened for reading: {}", path, std::strerror(errno));
    struct stat status {};
    const bool is_file = ::fstat(fd_, &status) == 0 && S_ISREG(status.st_mode);
    if (!is_file) ::close(fd_);
    CHECK_INPUT(is_file, "{}: is not a regular file", path);
    size_bytes_ = static_cast<int64_t>(status.st_size);
    XXH3_64bits_reset(&state_);
  }
  ~HashedFile() { ::close(fd_); }
  HashedFile(const HashedFile&) = delete;
  HashedFile& operator=(const HashedFile&) = delete;

  int64_t size_bytes() const { return size_bytes_; }

  void add(int64_t begin, int64_t end) {
    while (begin < end) {
      const auto wanted = static_cast<size_t>(std::min(end - begin, kBlockBytes));
      const ssize_t count = ::pread(fd_, block_.data(), wanted, begin);
      if (count < 0 && errno == EINTR) continue;
      CHECK_INPUT(count > 0, "{}: cannot be read at byte {}: {}", path_, begin,
                  count < 0 ? std::strerror(errno) : "it ends there");
      XXH3_64bits_update(&state_, block_.data(), static_cast<size_t>(count));
      begin += count;
    }
  }

  std::string identity() const {
    return fmt::format("{} of {} bytes, xxh3 {:016x}", path_, size_bytes_, XXH3_64bits_digest(&state_));
  }

 private:
  std::string path_;
  int fd_;
  int64_t size_bytes_ = 0;
  std::vector<char> block_;
  XXH3_state_t state_;
};

}  // namespace

std::string file_identity(const std::string& path) {
  HashedFile file(path);
  file.add(0, file.size_bytes());
  return file.identity();
}

std::string sampled_file_identity(const std::string& path) {
  HashedFile file(path);
  const int64_t size = file.size_bytes();
  if (size <= kSamples * kSampleBytes) {
    file.add(0, size);
    return file.identity();
  }
  // Without the product of the size, which may be petabytes.
  const int64_t last = size - kSampleBytes;
  for (int64_t i = 0; i < kSamples; ++i) {
    const int64_t begin = last / (kSamples - 1) * i + last % (kSamples - 1) * i / (kSamples - 1);
    file.add(begin, begin + kSampleBytes);
  }
  return file.identity();
}

}  // namespace octavo

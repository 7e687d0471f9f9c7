#include "core/files/parallel_write.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "core/arena.h"
#include "core/error.h"
#include "core/thread.h"

namespace octavo {
namespace {

constexpr int64_t kWrittenBlockBytes = int64_t{8} << 20;
constexpr int64_t kAlignment = 4096;  // Alignment that O_DIRECT requires of memory, offset and length.
constexpr size_t kWritingThreads = 4;

int64_t round_up(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

class ParallelWrite {
 public:
  ParallelWrite(const std::string& path, std::span<const std::span<const std::byte>> parts,
                const std::atomic<bool>* stop)
      : path_(path), parts_(parts), stop_(stop) {
    for (const auto& part : parts) {
      begins_.push_back(size_);
      size_ += static_cast<int64_t>(part.size());
    }
    const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    descriptor_ = ::open(path.c_str(), flags | O_DIRECT, 0644);
    if (descriptor_ < 0 && errno == EINVAL) descriptor_ = ::open(path.c_str(), flags, 0644);
    CHECK(descriptor_ >= 0, "{}: cannot be created: {}", path, std::strerror(errno));
  }
  ~ParallelWrite() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  ParallelWrite(const ParallelWrite&) = delete;
  ParallelWrite& operator=(const ParallelWrite&) = delete;

  void run() {
    reserve();
    const auto blocks = static_cast<size_t>((size_ + kWrittenBlockBytes - 1) / kWrittenBlockBytes);
    std::vector<Buffer> buffers(kWritingThreads);
    for_each_in_parallel(blocks, kWritingThreads,
                         [&](size_t block, size_t thread) { write_block(block, buffers[thread]); });
    check(::ftruncate(descriptor_, size_) == 0);  // Removes the padding of the last block, which was rounded up.
    check(::fsync(descriptor_) == 0 || errno == EINVAL);
    check(::close(std::exchange(descriptor_, -1)) == 0);
  }

 private:
  void check(bool succeeded) const { CHECK(succeeded, "{}: writing failed: {}", path_, std::strerror(errno)); }

  // Reserves the space, so that a full disk is detected at once and writes within the file need not wait for each
  // other.
  void reserve() const {
    if (size_ == 0 || ::fallocate(descriptor_, 0, 0, size_) == 0) return;
    check(errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL);
  }

  // Writes a block through the buffer of its thread, which is allocated for the thread's first block.
  void write_block(size_t block, Buffer& buffer) {
    CHECK(stop_ == nullptr || !*stop_, "{}: writing was stopped", path_);
    if (buffer.data() == nullptr) {
      buffer = Buffer::adopt(std::aligned_alloc(kAlignment, kWrittenBlockBytes), kWrittenBlockBytes, std::free);
      CHECK(buffer.data() != nullptr, "{}: out of memory for a write buffer", path_);
    }
    const int64_t begin = static_cast<int64_t>(block) * kWrittenBlockBytes;
    const int64_t end = std::min(begin + kWrittenBlockBytes, size_);
    gather(begin, end, static_cast<std::byte*>(buffer.data()));
    write(begin, round_up(end - begin), static_cast<std::byte*>(buffer.data()));
  }

  // Copies bytes [begin, end) of the file into a block, and zeros up to the end of the last page.
  void gather(int64_t begin, int64_t end, std::byte* block) const {
    auto part = static_cast<size_t>(std::ranges::upper_bound(begins_, begin) - begins_.begin()) - 1;
    int64_t place = begin;
    for (; place < end; ++part) {
      const int64_t from = place - begins_[part];
      const int64_t count = std::min(static_cast<int64_t>(parts_[part].size()) - from, end - place);
      if (count > 0) std::memcpy(block + (place - begin), parts_[part].data() + from, static_cast<size_t>(count));
      place += count;
    }
    std::memset(block + (end - begin), 0, static_cast<size_t>(round_up(end - begin) - (end - begin)));
  }

  void write(int64_t place, int64_t bytes, const std::byte* data) {
    while (bytes > 0) {
      // The flags are read before the write, because another thread may clear O_DIRECT.
      const int flags = ::fcntl(descriptor_, F_GETFL);
      const ssize_t written = ::pwrite(descriptor_, data, static_cast<size_t>(bytes), place);
      if (written < 0 && errno == EINTR) continue;
      // The file system accepts O_DIRECT but not this alignment, or an earlier write ended between two pages.
      if (written < 0 && errno == EINVAL && (flags & O_DIRECT) != 0) {
        check(::fcntl(descriptor_, F_SETFL, flags & ~O_DIRECT) == 0);
        continue;
      }
      check(written >= 0);
      data += written;
      place += written;
      bytes -= written;
    }
  }

  const std::string& path_;
  std::span<const std::span<const std::byte>> parts_;
  const std::atomic<bool>* stop_;
  std::vector<int64_t> begins_;  // Offsets of the parts in the file.
  int64_t size_ = 0;
  int descriptor_ = -1;
};

}  // namespace

void write_file_in_parallel(const std::string& path, std::span<const std::span<const std::byte>> parts,
                            const std::atomic<bool>* stop) {
  ParallelWrite(path, parts, stop).run();
}

}  // namespace octavo

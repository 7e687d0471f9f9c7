// Tests parallel writing on a file system that accepts O_DIRECT when a file is opened and refuses it when it is
// written. This program's pwrite replaces the system's.
#include "core/files/parallel_write.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "core/files/input_file.h"
#include "tests/data/test_files.h"

namespace {

std::atomic<bool> refuses_direct{false};
std::atomic<int> direct_writes{0};

bool is_direct(int descriptor) { return (::fcntl(descriptor, F_GETFL) & O_DIRECT) != 0; }

template <typename Condition>
void wait_until(const Condition& condition) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (!condition() && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
}

}  // namespace

// Replaces the pwrite of the C library. With refuses_direct, every direct write fails with EINVAL: the first one once a
// second one is in progress, and later ones once O_DIRECT was cleared on the descriptor.
extern "C" ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t place) {
  if (refuses_direct && is_direct(descriptor)) {
    if (direct_writes++ == 0) {
      wait_until([] { return direct_writes > 1; });
    } else {
      wait_until([&] { return !is_direct(descriptor); });
    }
    errno = EINVAL;
    return -1;
  }
  return ::syscall(SYS_pwrite64, descriptor, data, bytes, place);
}

namespace octavo {
namespace {

TEST(ParallelWrite, EveryThreadTriesAgainWithoutDirectWrites) {
  const TempDir dir;
  const std::string path = dir / "file";
  const std::string content((size_t{9} << 20) + 1, 'x');
  const std::span<const std::byte> part = std::as_bytes(std::span(content));
  refuses_direct = true;
  write_file_in_parallel(path, {{part}});
  refuses_direct = false;
  if (direct_writes == 0) GTEST_SKIP() << "files opened here are not direct";
  EXPECT_GT(direct_writes, 1);
  EXPECT_TRUE(read_input_file(path) == content);
}

}  // namespace
}  // namespace octavo

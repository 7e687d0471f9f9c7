#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "core/arena.h"
#include "core/stream.h"

namespace octavo::device_memory_test {
namespace {

// Device memory is zeroed before the caller gets it. A copy that the caller starts at once must not be overwritten by a
// late zeroing.
TEST(DeviceMemoryParity, IsZeroedBeforeItIsHandedOut) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs a GPU";
  Stream stream = Stream::cuda(0);
  constexpr int64_t kBytes = int64_t{8} << 30;
  const Buffer memory = Buffer::device(Device::kCuda, kBytes);
  const std::vector<int32_t> written(1024, 7);
  std::vector<int32_t> read(written.size());
  const auto bytes = static_cast<int64_t>(written.size() * sizeof(int32_t));
  char* end = static_cast<char*>(memory.data()) + kBytes - bytes;
  stream.copy(end, written.data(), bytes);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  stream.copy(read.data(), end, bytes);
  stream.synchronize();
  EXPECT_EQ(read, written);
}

}  // namespace
}  // namespace octavo::device_memory_test

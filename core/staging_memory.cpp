#include "core/staging_memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <utility>

#include "build_config.h"
#include "core/cuda_backend.h"
#include "core/error.h"
#include "core/format.h"
#include "core/thread.h"

namespace octavo {

namespace {

constexpr int64_t kSmallPage = 4096;
constexpr int64_t kLargePage = 2 << 20;

void free_pages(void* data) { std::free(data); }

void unlock_and_free_pages(void* data) {
  if constexpr (kHasCuda) cuda::unlock_pages(data);
  std::free(data);
}

// Allocates huge pages, which the system provides and locks many times faster. A system without huge pages returns
// small ones.
Buffer allocate_pages(Device device, int64_t bytes) {
  const int64_t rounded = (bytes + kLargePage - 1) / kLargePage * kLargePage;
  void* data = std::aligned_alloc(kLargePage, static_cast<size_t>(rounded));
  CHECK(data != nullptr, "out of memory: {:.2f} GiB could not be allocated", gib(bytes));
  static_cast<void>(madvise(data, static_cast<size_t>(rounded), MADV_HUGEPAGE));
  return Buffer::adopt(data, bytes, device == Device::kCuda ? unlock_and_free_pages : free_pages);
}

}  // namespace

StagingMemory::~StagingMemory() { stop(); }

void StagingMemory::stop() noexcept {
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
  stopping_ = false;
}

void StagingMemory::reserve(int64_t bytes) {
  if (bytes <= memory_.bytes()) return;
  stop();
  memory_ = Buffer();
  memory_ = allocate_pages(device_, bytes);
  ready_ = false;
  // If no thread starts, the pages are allocated when they are first written.
  thread_ = start_thread_if_possible([this] {
    auto* data = static_cast<volatile char*>(memory_.data());
    for (int64_t i = 0; i < memory_.bytes() && !stopping_.load(std::memory_order_relaxed); i += kSmallPage) data[i] = 0;
  });
}

void* StagingMemory::data() {
  if (ready_) return memory_.data();
  if (thread_.joinable()) thread_.join();
  if constexpr (kHasCuda) {
    if (device_ == Device::kCuda && !cuda::lock_pages(memory_.data(), memory_.bytes())) {
      const int64_t bytes = std::exchange(memory_, Buffer()).bytes();
      memory_ = Buffer::host(device_, bytes);
    }
  }
  ready_ = true;
  return memory_.data();
}

}  // namespace octavo

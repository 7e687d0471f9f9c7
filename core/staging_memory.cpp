#include "core/staging_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "build_config.h"
#include "core/cuda_backend.h"
#include "core/error.h"
#include "core/format.h"
#include "core/log.h"
#include "core/thread.h"

namespace octavo {

namespace {

constexpr int64_t kSmallPage = 4096;
constexpr int64_t kLargePage = 2 << 20;
// Calls of CUDA by other threads wait while a chunk is locked, so a chunk must be locked in a fraction of a step.
constexpr int64_t kChunk = 128 << 20;
// Length of the pause after a chunk was locked, as a multiple of the time that this took. Without pauses other threads
// hardly get to call CUDA until all chunks are locked.
constexpr int kPause = 4;

// Allocates huge pages, which the system provides and locks many times faster. A system without huge pages returns
// small ones.
Buffer allocate_pages(int64_t bytes) {
  const int64_t rounded = (bytes + kLargePage - 1) / kLargePage * kLargePage;
  void* data = std::aligned_alloc(kLargePage, static_cast<size_t>(rounded));
  CHECK(data != nullptr, "out of memory: {:.2f} GiB could not be allocated", gib(bytes));
  static_cast<void>(madvise(data, static_cast<size_t>(rounded), MADV_HUGEPAGE));
  return Buffer::adopt(data, bytes, [](void* pages) { std::free(pages); });
}

}  // namespace

void StagingMemory::release() noexcept {
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
  stopping_ = false;
  awaited_ = false;
  if constexpr (kHasCuda) {
    for (int64_t begin = 0; begin < locked_bytes_; begin += kChunk) {
      cuda::unlock_pages(static_cast<char*>(memory_.data()) + begin);
    }
  }
  locked_bytes_ = 0;
  memory_ = Buffer();
}

void StagingMemory::reserve(int64_t bytes) {
  if (bytes <= memory_.bytes()) return;
  release();
  memory_ = allocate_pages(bytes);
  ready_ = false;
  touch_chunk(0);
  lock_chunk(0);
  const auto prepare_others = [this] {
    stream_.bind_thread();
    for (int64_t begin = kChunk; begin < memory_.bytes() && !stopping_; begin += kChunk) touch_chunk(begin);
    for (int64_t begin = kChunk; begin < memory_.bytes() && !stopping_; begin += kChunk) {
      const auto began = std::chrono::steady_clock::now();
      lock_chunk(begin);
      if (!awaited_) std::this_thread::sleep_for(kPause * (std::chrono::steady_clock::now() - began));
    }
    ready_.store(true, std::memory_order_release);
  };
  if (bytes > kChunk) thread_ = start_thread_if_possible(prepare_others);
  if (!thread_.joinable()) prepare_others();
}

void StagingMemory::touch_chunk(int64_t begin) {
  auto* data = static_cast<volatile char*>(memory_.data());
  for (int64_t i = begin; i < std::min(begin + kChunk, memory_.bytes()); i += kSmallPage) data[i] = 0;
}

void StagingMemory::lock_chunk(int64_t begin) {
  if constexpr (kHasCuda) {
    if (!stream_.is_cuda() || refused_) return;
    const int64_t end = std::min(begin + kChunk, memory_.bytes());
    if (cuda::lock_pages(static_cast<char*>(memory_.data()) + begin, end - begin)) {
      locked_bytes_ = end;
      return;
    }
    refused_ = true;
    log_warning(
        "only {:.2f} of the {:.2f} GiB of host memory for checkpoints can be page-locked, so saves hold the run longer",
        gib(locked_bytes_), gib(memory_.bytes()));
  }
}

void* StagingMemory::data() {
  awaited_ = true;
  if (thread_.joinable()) thread_.join();
  return memory_.data();
}

void StagingMemory::copy(Stream& stream, void* dst, const void* src, int64_t bytes) const {
  auto* to = static_cast<char*>(dst);
  const auto* from = static_cast<const char*>(src);
  const auto* memory = static_cast<const char*>(memory_.data());
  const bool is_target = to >= memory && to < memory + memory_.bytes();
  int64_t place = (is_target ? to : from) - memory;
  while (bytes > 0) {
    const int64_t count = std::min(bytes, kChunk - place % kChunk);
    stream.copy(to, from, count);
    to += count;
    from += count;
    place += count;
    bytes -= count;
  }
}

}  // namespace octavo

// Host memory of tens of gigabytes that a GPU copies its state to. The operating system takes seconds to allocate,
// clear and page-lock so many pages. So a thread does this in chunks while training begins. Not thread-safe, not
// movable.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "core/arena.h"
#include "core/stream.h"

namespace octavo {

class StagingMemory {
 public:
  // Makes staging memory for copies from the device of `stream`.
  // Requires: `stream` outlives the object.
  explicit StagingMemory(const Stream& stream) : stream_(stream) {}
  ~StagingMemory() { release(); }

  // Ensures that `bytes` are available. If the memory grows, its contents are lost. Prepares the first chunk and
  // returns, while a thread prepares the other chunks. Throws if the system refuses so much memory.
  void reserve(int64_t bytes);
  int64_t bytes() const { return memory_.bytes(); }

  // Returns whether every chunk is prepared: its pages exist, and they are page-locked if the device is a GPU. If the
  // system refuses to lock a chunk, a warning says once that copies to the chunks from there on make the host wait.
  bool is_ready() const { return ready_.load(std::memory_order_acquire); }
  // Returns the reserved bytes after waiting until they are ready.
  void* data();
  // Queues a copy of `bytes` between the stream's device and a place in data(), in either direction. The copy of each
  // chunk is separate, because a GPU does not copy across the border of memory that was locked separately.
  void copy(Stream& stream, void* dst, const void* src, int64_t bytes) const;

 private:
  void touch_chunk(int64_t begin);
  void lock_chunk(int64_t begin);
  void release() noexcept;

  const Stream& stream_;
  Buffer memory_;
  // Written by the thread until the memory is ready.
  int64_t locked_bytes_ = 0;  // Bytes at the beginning that are page-locked.
  bool refused_ = false;      // Whether the system refused to lock a chunk.

  std::atomic<bool> ready_{true};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> awaited_{false};  // Whether a caller waits in data().
  std::thread thread_;
};

}  // namespace octavo

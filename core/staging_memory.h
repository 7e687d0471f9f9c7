// Host memory of tens of gigabytes that a GPU copies checkpoints to. The operating system takes as long to allocate and
// clear so many pages as the rest of the start takes. So a thread requests them while training begins, and they are
// page-locked at their first use, which is fast once they exist. Not thread-safe, not movable.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "core/arena.h"

namespace octavo {

class StagingMemory {
 public:
  // Makes staging memory for copies from `device`.
  explicit StagingMemory(Device device) : device_(device) {}
  ~StagingMemory();
  StagingMemory(const StagingMemory&) = delete;
  StagingMemory& operator=(const StagingMemory&) = delete;

  // Ensures that `bytes` are available. Loses the contents if it grows. Returns at once while a thread continues.
  // Throws if the system refuses so much memory.
  void reserve(int64_t bytes);
  int64_t bytes() const { return memory_.bytes(); }

  // Returns the reserved bytes after waiting for the thread. If the device is a GPU, the bytes are page-locked for the
  // calling thread's current device: in place, or in a new allocation if the system refuses to lock them.
  void* data();

 private:
  void stop() noexcept;

  Device device_;
  Buffer memory_;
  bool ready_ = true;  // Whether the thread is done and the pages are locked where necessary.
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace octavo

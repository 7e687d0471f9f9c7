// Host memory in tens of gigabytes, for a GPU to copy to: the staging memory of checkpoints. The system takes as long
// to hand out and clear so many pages as all else of a start together. So a thread asks for them while training begins,
// and they are locked where they are first needed, which is quick once they are there. Not thread-safe, not movable.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "core/arena.h"

namespace octavo {

class StagingMemory {
 public:
  // For copies from `device`.
  explicit StagingMemory(Device device) : device_(device) {}
  ~StagingMemory();
  StagingMemory(const StagingMemory&) = delete;
  StagingMemory& operator=(const StagingMemory&) = delete;

  // Makes sure of `bytes`; what they hold is lost where there were fewer. Returns at once, and a thread goes on. Throws
  // where the system refuses so much.
  void reserve(int64_t bytes);
  int64_t bytes() const { return memory_.bytes(); }

  // The reserved bytes, page-locked when the device is a GPU, the calling thread's current one: in place, or where the
  // system does not let pages of its own be locked, allocated anew. Waits for the thread.
  void* data();

 private:
  void stop() noexcept;

  Device device_;
  Buffer memory_;
  bool ready_ = true;  // the thread's work is done, and the pages are locked where they have to be
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace octavo

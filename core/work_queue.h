// A thread that does what it is given, in order: work that nobody waits for.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace octavo {

// post() and wait() may be called from any thread.
class WorkQueue {
 public:
  WorkQueue();
  // Waits until all is done.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // `work` must not throw.
  void post(std::function<void()> work);
  // Until all that was posted before is done.
  void wait();

 private:
  void run();

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;  // the one being done is still in front
  bool stopping_ = false;

  std::thread thread_;
};

}  // namespace octavo

// A thread that runs functions in order, for work that nobody waits for.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace octavo {

// Queue with its own thread. post() and wait() may be called from any thread.
class WorkQueue {
 public:
  WorkQueue();
  // Waits until all work is done.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // `work` must not throw.
  void post(std::function<void()> work);
  // Waits until all earlier work is done.
  void wait();

 private:
  void run();

  std::mutex mutex_;  // Guards the members below.
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;  // Work to do. The function that is running stays in front.
  bool stopping_ = false;

  std::thread thread_;
};

}  // namespace octavo

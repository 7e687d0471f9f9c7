#include "core/work_queue.h"

#include <utility>

#include "core/thread.h"

namespace octavo {

WorkQueue::WorkQueue() : thread_(start_thread("the log", [this] { run(); })) {}

WorkQueue::~WorkQueue() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void WorkQueue::post(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  changed_.notify_all();
}

void WorkQueue::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return queue_.empty(); });
}

void WorkQueue::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const std::function<void()> work = queue_.front();
    lock.unlock();
    work();
    lock.lock();
    queue_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace octavo

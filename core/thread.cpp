#include "core/thread.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/error.h"

namespace octavo {

std::thread start_thread(const char* purpose, std::function<void()> work) {
  try {
    std::thread thread(std::move(work));
    pthread_setname_np(thread.native_handle(), std::string(purpose).substr(0, 15).c_str());  // The system's limit.
    return thread;
  } catch (const std::system_error& error) {
    throw Error(
        fmt::format("no thread can be started for {}: {}; raise the limit on processes (ulimit -u, or the container's)",
                    purpose, error.code().message()));
  }
}

std::thread start_thread_if_possible(std::function<void()> work) {
  try {
    return std::thread(std::move(work));
  } catch (const std::exception&) {  // There is no thread, or no memory for one.
    return {};
  }
}

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

void for_each_in_parallel(size_t items, size_t threads, const std::function<void(size_t, size_t)>& visit) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  size_t failed = items;  // The lowest item whose visit threw `failure`.
  std::exception_ptr failure;
  const auto work = [&](size_t thread) {
    for (size_t item = next++; item < items; item = next++) {
      try {
        visit(item, thread);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (item < failed) failure = std::current_exception();
        failed = std::min(item, failed);
        next = items;
      }
    }
  };
  std::vector<std::thread> helpers(std::min(threads, items));
  for (size_t thread = 1; thread < helpers.size(); ++thread) {
    helpers[thread] = start_thread_if_possible([&work, thread] { work(thread); });
  }
  work(0);
  for (std::thread& helper : helpers) {
    if (helper.joinable()) helper.join();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace octavo

// Threads on a system that may refuse to start one, because a user's limit on processes (ulimit -u) or a container's
// limit is reached.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace octavo {

// Starts a thread that runs `work`. Debuggers and `top -H` show the first 15 bytes of `purpose` ("writing a
// checkpoint"). Throws an Error that names the purpose if the system refuses.
// Requires: `work` does not throw.
std::thread start_thread(const char* purpose, std::function<void()> work);

// Starts a thread for work that the caller can do itself or omit. If the system refuses, the returned thread is not
// joinable.
std::thread start_thread_if_possible(std::function<void()> work);

// A background thread that runs functions in the order of post(). post() and wait() may be called from any thread.
class WorkQueue {
 public:
  WorkQueue();
  // Waits until all work is done.
  ~WorkQueue();

  // Requires: `work` does not throw.
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

// Calls visit(item, thread) once for each item in [0, items), on up to `threads` threads, one of which is the calling
// thread. `thread`, in [0, threads), is the number of the thread that makes the call. Threads take the items in order.
// If a visit throws, no further items are taken. Waits for all threads, and then throws what the visit of the lowest
// item threw.
void for_each_in_parallel(size_t items, size_t threads, const std::function<void(size_t item, size_t thread)>& visit);

}  // namespace octavo

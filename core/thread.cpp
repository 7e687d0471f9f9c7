#include "core/thread.h"

#include <system_error>
#include <utility>

#include "core/error.h"

namespace octavo {

std::thread start_thread(const char* purpose, std::function<void()> work) {
  try {
    return std::thread(std::move(work));
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

void HelperThreads::start(std::function<void()> work) {
  threads_.reserve(threads_.size() + 1);
  if (std::thread thread = start_thread_if_possible(std::move(work)); thread.joinable()) {
    threads_.push_back(std::move(thread));
  }
}

}  // namespace octavo

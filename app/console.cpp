#include "app/console.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "app/run/launcher.h"

namespace octavo {

ConsoleSink::ConsoleSink(int descriptor) : descriptor_(descriptor), launcher_output_(open_launcher_output()) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || !(S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode))) return;
  // Setting O_NONBLOCK on `descriptor` itself would change it for every process that shares it, the user's shell too.
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  const int second = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (second < 0) return;
  descriptor_ = second;
  owned_ = true;
}

ConsoleSink::~ConsoleSink() {
  if (owned_) ::close(descriptor_);
  if (launcher_output_ >= 0) ::close(launcher_output_);
}

void ConsoleSink::sink_it_(const spdlog::details::log_msg& message) {
  pollfd beyond{launcher_output_, POLLOUT, 0};
  if (launcher_output_ >= 0 && ::poll(&beyond, 1, 0) == 1 && (beyond.revents & POLLERR) != 0) return;
  spdlog::memory_buf_t line;
  if (cut_line_) line.push_back('\n');
  formatter_->format(message, line);
  const size_t taken = write({line.data(), line.size()});
  stalled_ = taken < line.size();
  if (taken > 0) cut_line_ = stalled_;
}

size_t ConsoleSink::write(std::string_view bytes) {
  size_t taken = 0;
  while (taken < bytes.size()) {
    const ssize_t written = ::write(descriptor_, bytes.data() + taken, bytes.size() - taken);
    if (written > 0) taken += static_cast<size_t>(written);
    if (written >= 0 || errno == EINTR) continue;
    if (errno != EAGAIN) break;
    pollfd ready{descriptor_, POLLOUT, 0};
    if (::poll(&ready, 1, stalled_ ? 0 : kPatienceMs) == 0) break;
  }
  return taken;
}

}  // namespace octavo

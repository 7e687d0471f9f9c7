#include "app/text/child_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace octavo {

namespace {

// File actions that replace the standard streams of the child process.
class FileActions {
 public:
  explicit FileActions(int socket) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_adddup2(&actions_, socket, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions_, socket, STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions_, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  }
  ~FileActions() { posix_spawn_file_actions_destroy(&actions_); }
  FileActions(const FileActions&) = delete;
  FileActions& operator=(const FileActions&) = delete;

  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_{};
};

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& command) {
  std::array<int, 2> sockets{};
  CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) == 0,
        "no socket can be created for {}: {}", command.front(), std::strerror(errno));
  socket_ = sockets[0];
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const FileActions actions(sockets[1]);
  if (::posix_spawnp(&pid_, arguments[0], actions.get(), nullptr, arguments.data(), environ) != 0) pid_ = -1;
  ::close(sockets[1]);
}

ChildProcess::~ChildProcess() {
  ::close(socket_);
  if (pid_ < 0) return;
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void ChildProcess::write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return;
    text.remove_prefix(static_cast<size_t>(count));
  }
}

std::optional<std::string> ChildProcess::read_line(int64_t max_bytes) {
  const auto limit = static_cast<size_t>(max_bytes);
  size_t searched = 0;
  while (true) {
    const size_t newline = received_.find('\n', searched);
    if (newline != std::string::npos || received_.size() >= limit) {
      const size_t bytes = std::min(newline, limit);
      std::string line = received_.substr(0, bytes);
      received_.erase(0, newline == bytes ? bytes + 1 : bytes);
      return line;
    }
    searched = received_.size();
    std::array<char, 65536> buffer;
    const ssize_t count = ::recv(socket_, buffer.data(), buffer.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return std::nullopt;
    received_.append(buffer.data(), static_cast<size_t>(count));
  }
}

}  // namespace octavo

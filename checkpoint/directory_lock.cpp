#include "checkpoint/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/files/input_file.h"
#include "core/log.h"

namespace octavo {
namespace {

constexpr const char* kInUse = "{} {}: is in use by another run, {}; use another directory";
constexpr auto kPause = std::chrono::milliseconds(100);
constexpr int64_t kMaxHolderBytes = 1024;

std::string this_process() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return fmt::format("process {} on {}", ::getpid(), host.data());
}

}  // namespace

DirectoryLock::DirectoryLock(const std::filesystem::path& dir, DirectoryUse use, std::chrono::milliseconds patience)
    : dir_(dir), use_(use), path_(dir / use.file) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  Attempt attempt = try_lock();
  while (attempt == Attempt::kHeld && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kPause);
    attempt = try_lock();
  }
  CHECK_INPUT(attempt != Attempt::kHeld, kInUse, use_.key, dir.string(), holder(path_));
}

void DirectoryLock::check_free(const std::filesystem::path& dir, DirectoryUse use) {
  const std::filesystem::path path = dir / use.file;
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0) return;  // Nobody has locked the directory.
  const bool is_held = ::flock(file, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(file);
  CHECK_INPUT(!is_held, kInUse, use.key, dir.string(), holder(path));
}

// The end of a holder may remove the file between opening and locking it, so the locked file must still be the one in
// the directory.
DirectoryLock::Attempt DirectoryLock::try_lock() {
  descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  const int open_error = errno;
  CHECK_INPUT(descriptor_ >= 0, "{}: cannot be opened: {}", path_.string(), std::strerror(open_error));
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) {
    if (!is_in_place()) {
      ::close(std::exchange(descriptor_, -1));
      return Attempt::kHeld;
    }
    const std::string text = this_process() + "\n";
    const bool written = ::ftruncate(descriptor_, 0) == 0 && ::pwrite(descriptor_, text.data(), text.size(), 0) >= 0;
    static_cast<void>(written);  // The text is for messages only, so errors are ignored.
    return Attempt::kTaken;
  }
  const int error = errno;
  ::close(std::exchange(descriptor_, -1));
  if (error == EWOULDBLOCK || error == EINTR) return Attempt::kHeld;
  has_locks_ = false;
  log_warning("{} {}: its file system has no locks ({}), so a second run could use it at the same time", use_.key,
              dir_.string(), std::strerror(error));
  return Attempt::kUnknown;
}

bool DirectoryLock::is_in_place() const {
  struct stat mine {
  }, there{};
  return ::fstat(descriptor_, &mine) == 0 && ::lstat(path_.c_str(), &there) == 0 && mine.st_dev == there.st_dev &&
         mine.st_ino == there.st_ino;
}

std::string DirectoryLock::holder(const std::filesystem::path& path) {
  try {
    const std::string text = read_input_file(path.string(), kMaxHolderBytes);
    return text.empty() ? "whose process is unknown" : text.substr(0, text.find('\n'));
  } catch (const InputError&) {
    return "which has ended meanwhile";
  }
}

void DirectoryLock::renew() {
  if (!has_locks_ || (descriptor_ >= 0 && is_in_place())) return;
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  const Attempt attempt = try_lock();
  CHECK(attempt != Attempt::kHeld, "{} {}: is in use by another run, {}", use_.key, dir_.string(), holder(path_));
}

DirectoryLock::~DirectoryLock() {
  if (descriptor_ < 0) return;
  if (is_in_place()) ::unlink(path_.c_str());
  ::close(descriptor_);
}

}  // namespace octavo

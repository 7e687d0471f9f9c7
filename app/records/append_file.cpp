#include "app/records/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace octavo {

namespace {

constexpr int64_t kBlockBytes = 4096;
constexpr int64_t kMaxKeptBytes = int64_t{16} << 20;
// O_NONBLOCK has no effect on a file, and keeps a FIFO without a reader from blocking the writing thread.
constexpr int kOpenFlags = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK;

std::string reason(int error_number) { return std::generic_category().message(error_number); }

}  // namespace

AppendFile::AppendFile(std::string path) : path_(std::move(path)) {
  const std::filesystem::path directory = std::filesystem::path(path_).parent_path();
  std::error_code error;
  if (!directory.empty()) std::filesystem::create_directories(directory, error);
  CHECK_INPUT(!error, "the directory {} cannot be created: {}", directory.string(), error.message());
  descriptor_ = ::open(path_.c_str(), kOpenFlags, 0666);
  CHECK_INPUT(descriptor_ >= 0, "{} cannot be opened for writing: {}", path_, reason(errno));
}

AppendFile::~AppendFile() {
  try {
    if (!kept_.empty()) write_kept();
  } catch (const std::exception&) {  // There is no memory for the message, which nobody reads any more.
  }
  ::close(descriptor_);
}

int64_t AppendFile::size_bytes() const {
  struct stat status {};
  CHECK(::fstat(descriptor_, &status) == 0, "{} cannot be examined: {}", path_, reason(errno));
  return status.st_size;
}

std::string AppendFile::read_before(int64_t end, int64_t bytes) const {
  std::string text(static_cast<size_t>(std::min(bytes, end)), '\0');
  const ssize_t read = ::pread(descriptor_, text.data(), text.size(), end - std::ssize(text));
  CHECK(read == std::ssize(text), "{} cannot be read: {}", path_, reason(read < 0 ? errno : EIO));
  return text;
}

void AppendFile::drop_torn_line() {
  const int64_t size = size_bytes();
  int64_t end = size;
  while (end > 0) {
    const std::string text = read_before(end, kBlockBytes);
    const size_t line_end = text.rfind('\n');
    end -= std::ssize(text);
    if (line_end == std::string::npos) continue;
    end += static_cast<int64_t>(line_end) + 1;
    break;
  }
  if (end == size) return;
  CHECK_INPUT(::ftruncate(descriptor_, end) == 0, "{} cannot be truncated: {}", path_, reason(errno));
}

bool AppendFile::write(std::string_view record) {
  kept_.emplace_back(record);
  kept_bytes_ += std::ssize(record);
  write_kept();
  // The first record may be partly in the file and must be completed, so the oldest of the others are dropped.
  while (kept_bytes_ > kMaxKeptBytes && std::ssize(kept_) > 1) {
    const auto oldest = kept_.begin() + (first_is_partial_ ? 1 : 0);
    kept_bytes_ -= std::ssize(*oldest);
    kept_.erase(oldest);
    ++dropped_;
  }
  return kept_.empty();
}

void AppendFile::add_lost_lines(std::vector<std::string>& sentences) {
  write_kept();
  if (kept() + dropped() == 0) return;
  sentences.push_back(fmt::format("{}; {} of its lines are lost",
                                  failure_.empty() ? path_ + " could not be written for a while" : failure_,
                                  kept() + dropped()));
}

// Does not create the directory again, because a file system that is no longer mounted may have been there.
void AppendFile::follow_path() {
  struct stat open_file {
  }, named{};
  const bool is_named = ::stat(path_.c_str(), &named) == 0;
  if (!is_named && errno != ENOENT) return;
  if (::fstat(descriptor_, &open_file) != 0) return;
  if (is_named && named.st_dev == open_file.st_dev && named.st_ino == open_file.st_ino) return;
  const int again = ::open(path_.c_str(), kOpenFlags, 0666);
  if (again < 0 && open_file.st_nlink > 0) {  // The file still has a name elsewhere, so its lines are not lost.
    if (!std::exchange(warned_of_replacement_, true))
      log_warning("{} was moved during the run; further lines go to it at its new place", path_);
    return;
  }
  if (again < 0) {
    failure_ = fmt::format("{} was removed or replaced and cannot be opened again: {}", path_, reason(errno));
    return;
  }
  ::close(std::exchange(descriptor_, again));
  if (first_is_partial_) {  // Drops the record, because the new file would get only the end of its line.
    kept_bytes_ -= std::ssize(kept_.front());
    kept_.pop_front();
    first_is_partial_ = false;
    ++dropped_;
  }
  if (!std::exchange(warned_of_replacement_, true))
    log_warning("{} was removed or replaced during the run; further lines go to the file that is there now", path_);
}

bool AppendFile::write_kept() {
  failure_.clear();
  follow_path();
  if (!failure_.empty()) return false;
  while (!kept_.empty()) {
    std::string& record = kept_.front();
    const ssize_t written = ::write(descriptor_, record.data(), record.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      failure_ = fmt::format("{} cannot be written: {}", path_, reason(errno));
      return false;
    }
    kept_bytes_ -= written;
    first_is_partial_ = written < std::ssize(record);
    if (first_is_partial_) {
      record.erase(0, static_cast<size_t>(written));
    } else {
      kept_.pop_front();
    }
  }
  return true;
}

}  // namespace octavo

#include "app/train/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/error.h"

namespace octavo {

namespace {

std::string reason(int error_number) { return std::generic_category().message(error_number); }

}  // namespace

AppendFile::AppendFile(std::string path) : path_(std::move(path)) {
  const std::filesystem::path directory = std::filesystem::path(path_).parent_path();
  std::error_code error;
  if (!directory.empty()) std::filesystem::create_directories(directory, error);
  CHECK_INPUT(!error, "the directory {} cannot be created: {}", directory.string(), error.message());
  descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  CHECK_INPUT(descriptor_ >= 0, "{} cannot be opened for writing: {}", path_, reason(errno));
}

AppendFile::~AppendFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

AppendFile::AppendFile(AppendFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

AppendFile& AppendFile::operator=(AppendFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

bool AppendFile::ends_a_line() const {
  struct stat status {};
  CHECK(::fstat(descriptor_, &status) == 0, "{} cannot be examined: {}", path_, reason(errno));
  if (status.st_size == 0) return true;
  char last = 0;
  CHECK(::pread(descriptor_, &last, 1, status.st_size - 1) == 1, "{} cannot be read", path_);
  return last == '\n';
}

void AppendFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    CHECK(written > 0, "{} cannot be written: {}", path_, reason(errno));
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace octavo

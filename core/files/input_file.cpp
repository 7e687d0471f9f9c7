#include "core/files/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/printable.h"

namespace octavo {
namespace {

// Smallest and largest number of bytes per read. Between these limits a read asks for one byte more than the size of
// the file, so that the first read already detects the end.
constexpr int64_t kLeastReadBytes = int64_t{4} << 10, kMostReadBytes = int64_t{1} << 20;

int64_t block_bytes(int64_t file_bytes) { return std::clamp(file_bytes, kLeastReadBytes - 1, kMostReadBytes - 1) + 1; }

const char* kind_name(mode_t mode) {
  if (S_ISDIR(mode)) return "directory";
  if (S_ISFIFO(mode)) return "FIFO";
  if (S_ISSOCK(mode)) return "socket";
  return "device";
}

// Returns the mode of the file at `path`, or 0 if there is none.
mode_t mode_at(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return status.st_mode;
  if (errno == ENOENT || errno == ENOTDIR) return 0;
  throw UnreadableFile(fmt::format("{}: cannot be accessed: {}", path, std::strerror(errno)));
}

}  // namespace

InputFile::InputFile(const std::string& path)
    : path_(path),
      // O_NONBLOCK, because opening a FIFO would wait for a writer, and reading some files of /proc would wait for new
      // data.
      descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {
  // stat() tells the kind of a file that cannot be opened, such as a socket or a device without a driver.
  int error = errno;
  struct stat status {};
  const bool is_known = descriptor_ >= 0 ? ::fstat(descriptor_, &status) == 0 : ::stat(path.c_str(), &status) == 0;
  const bool is_other = is_known && !S_ISREG(status.st_mode);
  size_bytes_ = static_cast<int64_t>(status.st_size);
  if (descriptor_ >= 0 && is_known && !is_other) return;
  if (descriptor_ >= 0 && !is_known) error = errno;
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  if (is_other) throw UnreadableFile(fmt::format("{}: is a {}, expected a file", path, kind_name(status.st_mode)));
  throw UnreadableFile(fmt::format("{}: cannot be opened for reading: {}", path, std::strerror(error)));
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

int64_t InputFile::read_some(std::string& text, int64_t bytes) {
  const size_t old_size = text.size();
  text.resize(old_size + static_cast<size_t>(bytes));
  ssize_t count = 0;
  do {
    count = ::read(descriptor_, text.data() + old_size, static_cast<size_t>(bytes));
  } while (count < 0 && errno == EINTR);
  const int error = errno;
  text.resize(old_size + static_cast<size_t>(std::max<ssize_t>(count, 0)));
  if (count < 0) throw UnreadableFile(fmt::format("{}: cannot be read: {}", path_, std::strerror(error)));
  return count;
}

int64_t InputFile::read_at(int64_t offset, std::span<std::byte> bytes) const {
  int64_t done = 0;
  while (done < std::ssize(bytes)) {
    const auto rest = bytes.subspan(static_cast<size_t>(done));
    const ssize_t count = ::pread(descriptor_, rest.data(), rest.size(), offset + done);
    if (count < 0 && errno == EINTR) continue;
    CHECK_AS(UnreadableFile, count >= 0, "{}: cannot be read: {}", path_, std::strerror(errno));
    if (count == 0) break;
    done += count;
  }
  return done;
}

std::string InputFile::read_all(int64_t max_bytes) {
  std::string text;
  const int64_t block = block_bytes(size_bytes_);
  int64_t wanted = std::clamp(size_bytes_, block - 1, std::max(max_bytes, block - 1)) + 1;
  while (read_some(text, wanted) > 0) {
    CHECK_INPUT(static_cast<int64_t>(text.size()) <= max_bytes,
                "{}: is longer than {} bytes, the maximum for this file", path_, max_bytes);
    wanted = block;
  }
  return text;
}

bool InputFile::read_line(std::string& line) {
  line.clear();
  size_t searched = line_begin_;
  while (true) {
    const size_t end = buffer_.find('\n', searched);
    if (end != std::string::npos) {
      line.assign(buffer_, line_begin_, end - line_begin_);
      line_begin_ = end + 1;
      return true;
    }
    buffer_.erase(0, std::exchange(line_begin_, 0));
    searched = buffer_.size();
    if (read_some(buffer_, block_bytes(size_bytes_)) == 0) break;
  }
  line.swap(buffer_);
  buffer_.clear();
  return !line.empty();
}

std::string read_input_file(const std::string& path, int64_t max_bytes) { return InputFile(path).read_all(max_bytes); }

std::string read_system_file(const std::string& path) {
  try {
    return read_input_file(path);
  } catch (const UnreadableFile&) {
    return "";
  }
}

bool path_exists(const std::string& path) { return mode_at(path) != 0; }

bool is_directory_at(const std::string& path) { return S_ISDIR(mode_at(path)); }

std::string absolute_path(const std::string& path) {
  std::error_code error;
  const std::filesystem::path found = std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
  return (error ? std::filesystem::path(path) : found) / "";
}

bool is_inside(const std::string& path, const std::string& dir) {
  return absolute_path(path).starts_with(absolute_path(dir));
}

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         printable(name, 4 * name.size()) == name;
}

std::string path_inside(const std::string& dir, const std::string& name) {
  namespace fs = std::filesystem;
  const fs::path path = fs::path(dir) / name;
  std::error_code error;
  if (!fs::is_symlink(fs::symlink_status(path, error))) return path.string();
  const fs::path target = fs::canonical(path, error);
  if (error) return path.string();  // The link leads nowhere. Opening the file will report it.
  const fs::path home = fs::canonical(dir, error), folder = target.parent_path();
  const bool in_cache =
      home.parent_path().filename() == "snapshots" && folder == home.parent_path().parent_path() / "blobs";
  CHECK_INPUT(folder == home || in_cache, "{}: is a link that leads out of its directory, to {}", path.string(),
              target.string());
  return path.string();
}

}  // namespace octavo

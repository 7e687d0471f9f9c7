#include "core/files/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/files/input_file.h"

namespace octavo {

namespace {

constexpr int64_t kMarkedBytes = int64_t{64} << 10;  // Bytes at the beginning of a file that are searched for the mark.

// Refuses paths at which rename() would replace a device or /dev/stdout, or would fail because of a directory.
void check_place(const std::string& path) {
  CHECK_INPUT(!path.empty(), "the path of a file to write is empty");
  std::error_code error;
  const std::filesystem::file_status there = std::filesystem::status(path, error);
  if (!std::filesystem::status_known(there) || !std::filesystem::exists(there)) return;
  CHECK_INPUT(!std::filesystem::is_directory(there), "{}: is a directory, expected a file or a new name", path);
  const bool is_stream = std::filesystem::read_symlink(path, error).string().starts_with("/proc/");
  CHECK_INPUT(!is_stream && std::filesystem::is_regular_file(there),
              "{}: is not a regular file, expected a regular file or a new name", path);
}

std::string beginning_of(const std::string& path) {
  const InputFile file(path);
  std::string text(static_cast<size_t>(std::min(file.size_bytes(), kMarkedBytes)), '\0');
  text.resize(static_cast<size_t>(file.read_at(0, std::as_writable_bytes(std::span(text)))));
  return text;
}

// Returns null and sets errno if the file cannot be created.
std::FILE* create_file(const std::string& path) {
  ::unlink(path.c_str());
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) return nullptr;
  std::FILE* file = ::fdopen(descriptor, "wb");
  if (file == nullptr) ::close(descriptor);
  return file;
}

}  // namespace

void check_output(const std::string& path, const OutputKind& kind) {
  check_place(path);
  std::error_code error;
  const std::filesystem::file_status there = std::filesystem::symlink_status(path, error);
  if (!std::filesystem::status_known(there) || !std::filesystem::exists(there)) return;
  CHECK_INPUT(!std::filesystem::is_symlink(there), "{}: is a symbolic link, expected {} or a new name", path,
              kind.name);
  const std::string beginning = beginning_of(path);
  CHECK_INPUT(beginning.empty() || beginning.find(kind.mark) != std::string::npos,
              "{}: is not {}, so it is not replaced; expected such a file or a new name", path, kind.name);
}

OutputFile::OutputFile(std::string path) : path_(std::move(path)), temporary_(path_ + ".tmp") {
  check_place(path_);
  file_.reset(create_file(temporary_));
  const int error = errno;
  CHECK(file_ != nullptr || (error != ENOSPC && error != EDQUOT), "{}: cannot be created: {}", temporary_,
        std::strerror(error));
  CHECK_INPUT(file_ != nullptr, "{}: cannot be created: {}", temporary_, std::strerror(error));
}

OutputFile::OutputFile(const std::string& path, const OutputKind& kind)
    : OutputFile((check_output(path, kind), path)) {}

OutputFile::~OutputFile() {
  file_.reset();
  if (!renamed_) std::remove(temporary_.c_str());
}

void OutputFile::write(const void* bytes, size_t size_bytes) {
  if (size_bytes == 0) return;
  const size_t written = std::fwrite(bytes, 1, size_bytes, file_.get());
  CHECK(written == size_bytes, "{}: writing failed: {}", temporary_, std::strerror(errno));
}

void OutputFile::finish() {
  // A full disk may be detected only here, because fwrite leaves the last bytes in its buffer and the file system may
  // allocate blocks late.
  CHECK(std::fflush(file_.get()) == 0, "{}: writing failed: {}", temporary_, std::strerror(errno));
  // Pipes and special files have nothing to sync and return EINVAL.
  CHECK(::fsync(::fileno(file_.get())) == 0 || errno == EINVAL, "{}: writing failed: {}", temporary_,
        std::strerror(errno));
  CHECK(std::fclose(file_.release()) == 0, "{}: writing failed: {}", temporary_, std::strerror(errno));
}

void OutputFile::rename() {
  CHECK(file_ == nullptr, "{}: renamed before it was finished", temporary_);
  CHECK(std::rename(temporary_.c_str(), path_.c_str()) == 0, "{}: cannot be renamed to {}: {}", temporary_, path_,
        std::strerror(errno));
  renamed_ = true;
}

void OutputFile::set_old_aside() {
  check_place(path_);
  std::string old = path_ + ".old.tmp";
  const bool moved = std::rename(path_.c_str(), old.c_str()) == 0;
  CHECK(moved || errno == ENOENT, "{}: cannot be renamed to {}: {}", path_, old, std::strerror(errno));
  if (moved) old_ = std::move(old);
}

void OutputFile::put_old_back() noexcept {
  if (renamed_) std::remove(path_.c_str());
  if (!old_.empty()) std::rename(old_.c_str(), path_.c_str());
}

void rename_together(std::span<OutputFile* const> files) {
  try {
    for (size_t i = files.size(); i-- > 0;) files[i]->set_old_aside();
    for (OutputFile* file : files) file->rename();
  } catch (...) {
    for (OutputFile* file : files) file->put_old_back();
    throw;
  }
  for (const OutputFile* file : files) {
    if (!file->old_.empty()) std::remove(file->old_.c_str());
  }
}

void write_output_file(const std::string& path, std::string_view content) {
  OutputFile file(path);
  file.write(content);
  file.finish();
  file.rename();
}

void write_output_file(const std::string& path, const OutputKind& kind, std::string_view content) {
  check_output(path, kind);
  write_output_file(path, content);
}

}  // namespace octavo

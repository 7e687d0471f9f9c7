#include "core/files/output_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/error.h"

namespace octavo {

namespace {

// Renaming would put a file in the place of a device, or of /dev/stdout, and fails in that of a directory.
void check_place(const std::string& path) {
  CHECK_INPUT(!path.empty(), "the path of a file to write is empty");
  std::error_code error;
  const std::filesystem::file_status there = std::filesystem::status(path, error);
  if (!std::filesystem::status_known(there) || !std::filesystem::exists(there)) return;
  CHECK_INPUT(!std::filesystem::is_directory(there), "{}: is a directory, expected a file or a new name", path);
  const bool is_stream = std::filesystem::read_symlink(path, error).string().starts_with("/proc/");
  CHECK_INPUT(!is_stream && std::filesystem::is_regular_file(there),
              "{}: is no file on disk, expected one or a new name", path);
}

}  // namespace

OutputFile::OutputFile(std::string path) : path_(std::move(path)), temporary_(path_ + ".tmp") {
  check_place(path_);
  file_.reset(std::fopen(temporary_.c_str(), "wb"));
  const int error = errno;
  CHECK(file_ != nullptr || (error != ENOSPC && error != EDQUOT), "{}: cannot be created: {}", temporary_,
        std::strerror(error));
  CHECK_INPUT(file_ != nullptr, "{}: cannot be created: {}", temporary_, std::strerror(error));
}

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
  // A full disk may show only here: fwrite leaves the last bytes in the buffer, and the file system may allocate late.
  CHECK(std::fflush(file_.get()) == 0, "{}: writing failed: {}", temporary_, std::strerror(errno));
  // Pipes and special files have nothing to sync and say EINVAL.
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

void write_output_file(const std::string& path, std::string_view content) {
  OutputFile file(path);
  file.write(content);
  file.finish();
  file.rename();
}

}  // namespace octavo

#include "checkpoint/memory_directory.h"

#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>

#include "checkpoint/checkpoint_files.h"
#include "checkpoint/directory_lock.h"
#include "core/error.h"
#include "core/files/input_file.h"
#include "core/files/output_file.h"
#include "core/log.h"

namespace octavo {

namespace fs = std::filesystem;

namespace {

constexpr size_t kIdDigits = 32;

// Returns the status of `path` itself without following links, or nothing if it does not exist.
std::optional<struct stat> status_of(const fs::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0) return status;
  const int error = errno;
  CHECK_INPUT(error == ENOENT, "{}: cannot be accessed: {}", path.string(), std::strerror(error));
  return std::nullopt;
}

fs::path path_of(const std::string& id, const fs::path& file) {
  const std::optional<struct stat> status = status_of(file);
  CHECK_INPUT(status, "{}: was removed while it was read", file.string());
  return fs::path("/dev/shm") / fmt::format("octavo_{}_{}", id, status->st_ino);
}

void check_private(const fs::path& path, const struct stat& status) {
  const std::string remedy =
      fmt::format("remove it, or remove {} of checkpoint.dir to start without the checkpoint in memory", kMemoryIdFile);
  CHECK_INPUT(S_ISDIR(status.st_mode), "{}: is not a directory, expected one that this user created; {}", path.string(),
              remedy);
  CHECK_INPUT(status.st_uid == ::geteuid(), "{}: belongs to user {}, expected user {}; {}", path.string(),
              status.st_uid, ::geteuid(), remedy);
  CHECK_INPUT((status.st_mode & 077) == 0, "{}: has mode {:o}, expected 700; {}", path.string(), status.st_mode & 07777,
              remedy);
  struct stat parent {};
  CHECK_INPUT(::stat(path.parent_path().c_str(), &parent) == 0 &&
                  ((parent.st_mode & S_ISVTX) != 0 || (parent.st_mode & 022) == 0),
              "{}: other users may replace its contents, expected mode 1777", path.parent_path().string());
}

}  // namespace

fs::path memory_directory(const fs::path& checkpoint_dir) {
  const fs::path file = checkpoint_dir / kMemoryIdFile;
  if (!is_there(file)) return {};
  // A hard-linked copy of a run shares the file, but must not share the memory of the run.
  if (const std::optional<struct stat> status = status_of(file); status && status->st_nlink > 1) return {};
  const std::string id = read_input_file(file.string(), 2 * kIdDigits);
  const auto is_digit = [](char c) { return ('0' <= c && c <= '9') || ('a' <= c && c <= 'f'); };
  CHECK_INPUT(id.size() == kIdDigits && std::all_of(id.begin(), id.end(), is_digit),
              "{}: expected {} hexadecimal digits; remove it to start without the checkpoint in memory", file.string(),
              kIdDigits);
  return path_of(id, file);
}

fs::path renew_memory_directory(const fs::path& checkpoint_dir) {
  std::array<uint8_t, kIdDigits / 2> bytes{};
  CHECK(::getrandom(bytes.data(), bytes.size(), 0) == std::ssize(bytes), "getrandom: {}", std::strerror(errno));
  std::string id;
  for (const uint8_t byte : bytes) id += fmt::format("{:02x}", byte);
  const fs::path file = checkpoint_dir / kMemoryIdFile;
  write_output_file(file.string(), id);
  sync_directory(checkpoint_dir);
  return path_of(id, file);
}

void forget_memory_directory(const fs::path& checkpoint_dir) {
  std::error_code ignored;
  fs::remove(checkpoint_dir / kMemoryIdFile, ignored);
}

void make_private_directory(const fs::path& path) {
  const bool made = ::mkdir(path.c_str(), 0700) == 0;
  const int error = errno;
  CHECK_INPUT(made || error == EEXIST, "{}: cannot be created: {}", path.string(), std::strerror(error));
  const std::optional<struct stat> status = status_of(path);
  CHECK_INPUT(status, "{}: was removed while it was being created", path.string());
  check_private(path, *status);
}

void remove_private_directory(const fs::path& path) {
  try {
    const std::optional<struct stat> status = status_of(path);
    if (!status) return;
    check_private(path, *status);
    const DirectoryLock lock(path, kCheckpointDirectory);
    remove_directory(path);
  } catch (const Error& error) {
    log_warning("the checkpoint in memory of an earlier run stays: {}", error.what());
  }
}

}  // namespace octavo

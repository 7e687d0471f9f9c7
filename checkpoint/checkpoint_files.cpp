#include "checkpoint/checkpoint_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <span>
#include <string_view>
#include <system_error>

#include "core/error.h"
#include "core/files/checksum.h"
#include "core/files/input_file.h"
#include "core/files/output_file.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMarkBytes = 64;  // Bytes at the end of a manifest, which include its checksum of 16 digits.

std::string mark_of(int64_t bytes, std::string_view end) {
  return fmt::format("{} {}", bytes, checksum_hex(end.data(), std::ssize(end)));
}

// Returns the step of a directory called `prefix`step_N, or nothing for other names.
std::optional<int64_t> step_of(std::string_view name, std::string_view prefix) {
  const std::string start = std::string(prefix) + "step_";
  if (!name.starts_with(start)) return std::nullopt;
  name.remove_prefix(start.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size() || step < 0) return std::nullopt;
  return step;
}

std::vector<fs::path> list_directory(const fs::path& dir) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error))
    paths.push_back(it->path());
  CHECK_INPUT(!error || error == std::errc::no_such_file_or_directory, "{}: cannot be listed: {}", dir.string(),
              error.message());
  return paths;
}

bool is_complete(const fs::path& checkpoint) { return is_there(checkpoint) && is_there(checkpoint / kManifestName); }

void rename_path(const fs::path& from, const fs::path& to) {
  CHECK(std::rename(from.c_str(), to.c_str()) == 0, "{}: cannot be renamed to {}: {}", from.string(), to.string(),
        std::strerror(errno));
}

// Returns `path`, or the first free name with a number.
fs::path free_name(const fs::path& path) {
  fs::path name = path;
  for (int number = 2; fs::exists(fs::symlink_status(name)); ++number) {
    name = fmt::format("{}_{}", path.string(), number);
  }
  return name;
}

}  // namespace

std::optional<int64_t> step_of_directory(const fs::path& directory) {
  return step_of(directory.filename().string(), "");
}

bool is_there(const fs::path& path) {
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  CHECK_INPUT(type != fs::file_type::none, "{}: cannot be accessed: {}", path.string(), error.message());
  if (type != fs::file_type::not_found) return true;
  CHECK_INPUT(!fs::is_symlink(fs::symlink_status(path, error)), "{}: is a link whose target does not exist",
              path.string());
  return false;
}

void remove_directory(const fs::path& dir) {
  std::error_code error;
  fs::remove_all(dir, error);
  CHECK(!error, "{}: cannot be removed: {}", dir.string(), error.message());
}

std::vector<FoundCheckpoint> find_checkpoints(const fs::path& dir, bool with_incomplete) {
  std::map<int64_t, FoundCheckpoint> found, incomplete;
  for (const fs::path& path : list_directory(dir)) {
    const std::string name = path.filename().string();
    const std::optional<int64_t> step = step_of(name, "");
    const std::optional<int64_t> replaced = step_of(name, kReplacedPrefix);
    if (!step && !replaced) continue;
    if (!is_complete(path)) {
      if (step && with_incomplete && fs::is_directory(path)) incomplete[*step] = {*step, path, false};
      continue;
    }
    if (step) found[*step] = {*step, path};
    if (replaced) found.emplace(*replaced, FoundCheckpoint{*replaced, path});
  }
  found.merge(incomplete);
  std::vector<FoundCheckpoint> checkpoints;
  for (const auto& [step, checkpoint] : found) checkpoints.push_back(checkpoint);
  return checkpoints;
}

void remove_checkpoint(const FoundCheckpoint& checkpoint) {
  const fs::path doomed = checkpoint.path.parent_path() / (kTemporaryPrefix + step_directory_name(checkpoint.step));
  std::error_code error;
  fs::rename(checkpoint.path, doomed, error);
  CHECK(!error, "{}: cannot be removed: {}", checkpoint.path.string(), error.message());
  remove_directory(doomed);
}

void sync_directory(const fs::path& dir) {
  const int fd = ::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  CHECK(fd >= 0, "{}: cannot be opened: {}", dir.string(), std::strerror(errno));
  // Some network file systems cannot sync a directory and return EINVAL; their renames are synchronous.
  const bool synced = ::fsync(fd) == 0 || errno == EINVAL;
  const int error = errno;
  ::close(fd);
  CHECK(synced, "{}: cannot be synced to disk: {}", dir.string(), std::strerror(error));
}

void install_directory(const fs::path& fresh, const fs::path& final) {
  std::error_code ignored;  // The replaced directory stays if it cannot be removed.
  const fs::path parent = final.parent_path().empty() ? fs::path(".") : final.parent_path();
  if (!is_there(final)) {
    rename_path(fresh, final);
    return sync_directory(parent);
  }
  if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, final.c_str(), RENAME_EXCHANGE) == 0) {
    sync_directory(parent);
    fs::remove_all(fresh, ignored);
    return;
  }
  const fs::path aside = parent / (kReplacedPrefix + final.filename().string());
  remove_directory(aside);
  rename_path(final, aside);
  rename_path(fresh, final);
  sync_directory(parent);
  fs::remove_all(aside, ignored);
}

ListedFile write_attached_file(const fs::path& dir, const AttachedFile& file) {
  write_output_file((dir / file.name).string(), file.content);
  const auto bytes = static_cast<int64_t>(file.content.size());
  return {file.name, bytes, checksum_hex(file.content.data(), bytes)};
}

ManifestFile read_manifest(const fs::path& checkpoint) {
  const fs::path path = checkpoint / kManifestName;
  CHECK_AS(DamagedCheckpoint, is_there(path), "{}: has no {}, so it was not written or copied completely",
           checkpoint.string(), kManifestName);
  return {checkpoint, read_input_file(path.string())};
}

std::string manifest_mark(const fs::path& checkpoint) {
  const InputFile file((checkpoint / kManifestName).string());
  const int64_t count = std::min(file.size_bytes(), kMarkBytes);
  std::string end(static_cast<size_t>(count), '\0');
  const int64_t read = file.read_at(file.size_bytes() - count, std::as_writable_bytes(std::span(end)));
  CHECK_AS(UnreadableFile, read == count, "{}: its last {} bytes cannot be read", file.path(), count);
  return mark_of(file.size_bytes(), end);
}

std::string manifest_mark(const ManifestFile& manifest) {
  const int64_t bytes = std::ssize(manifest.text), count = std::min(bytes, kMarkBytes);
  return mark_of(bytes, std::string_view(manifest.text).substr(static_cast<size_t>(bytes - count)));
}

void write_manifest(const fs::path& dir, const CheckpointManifest& manifest) {
  const std::string text = manifest_to_text(manifest);
  write_output_file((dir / kManifestName).string(), text);
  sync_directory(dir);
  CHECK(read_manifest(dir).text == text, "{}: differs from what was written when it is read back",
        (dir / kManifestName).string());
}

fs::path set_aside_directory(const fs::path& checkpoint, const std::string& prefix) {
  const fs::path aside = free_name(checkpoint.parent_path() / (prefix + checkpoint.filename().string()));
  rename_path(checkpoint, aside);
  sync_directory(checkpoint.parent_path());
  return aside;
}

fs::path create_earlier(const fs::path& dir) {
  fs::path earlier = free_name(dir / kEarlierName);
  std::error_code error;
  fs::create_directory(earlier, error);
  CHECK(!error, "{}: cannot be created: {}", earlier.string(), error.message());
  return earlier;
}

fs::path move_to_earlier(const fs::path& dir, const std::vector<FoundCheckpoint>& checkpoints) {
  const fs::path earlier = create_earlier(dir);
  // Moves the newest first, so that at any moment the remaining checkpoints are the oldest ones.
  for (size_t i = checkpoints.size(); i > 0; --i) {
    rename_path(checkpoints[i - 1].path, earlier / step_directory_name(checkpoints[i - 1].step));
  }
  sync_directory(earlier);
  sync_directory(dir);
  return earlier;
}

std::optional<int64_t> free_bytes(const fs::path& dir) {
  std::error_code error;
  const fs::space_info space = fs::space(dir, error);
  if (error) return std::nullopt;
  return static_cast<int64_t>(std::min<std::uintmax_t>(space.available, std::numeric_limits<int64_t>::max()));
}

std::vector<fs::path> put_interrupted_back(const fs::path& dir) {
  std::vector<fs::path> left;
  for (const fs::path& path : list_directory(dir)) {
    const std::string name = path.filename().string();
    if (step_of(name, kTemporaryPrefix) || name.starts_with(kProbePrefix)) left.push_back(path);
    if (!step_of(name, kReplacedPrefix)) continue;
    const fs::path final = dir / name.substr(std::string_view(kReplacedPrefix).size());
    if (is_complete(path) && !is_complete(final)) {
      install_directory(path, final);
    } else {
      left.push_back(path);
    }
  }
  return left;
}

}  // namespace octavo

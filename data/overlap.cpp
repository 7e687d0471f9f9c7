#include "data/overlap.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/files/file_identity.h"
#include "core/files/input_file.h"
#include "data/tokens/fingerprint.h"
#include "data/tokens/token_file.h"

namespace octavo {
namespace {

constexpr int64_t kLastBytes = 4096;

using Place = std::pair<dev_t, ino_t>;

struct FileOnDisk {
  std::string path;  // Path of the file with the tokens.
  Place place;
  int64_t bytes = 0;
};

FileOnDisk look_up(const std::string& token_file) {
  const std::string path = token_file_prefix(token_file) + ".bin";
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) {
    const int error = errno;
    (void)count_tokens(token_file);  // Throws a more specific error for a token file that cannot be read.
    throw UnreadableFile(fmt::format("{}: cannot be read: {}", path, std::strerror(error)));
  }
  return {path, {found.st_dev, found.st_ino}, found.st_size};
}

// Returns the files of all datasets that are read. Throws an InputError if a dataset contains a file twice.
std::vector<FileOnDisk> files_on_disk(const std::vector<DatasetSource>& sources, const char* key) {
  std::vector<FileOnDisk> files;
  for (const DatasetSource& source : sources) {
    if (source.weight == 0) continue;
    std::map<Place, std::string> paths;  // Files of this dataset by their place on disk.
    for (const std::string& token_file : token_files_of(source)) {
      const FileOnDisk& file = files.emplace_back(look_up(token_file));
      const auto [other, is_new] = paths.try_emplace(file.place, file.path);
      CHECK_INPUT(is_new,
                  "a dataset of {} has the file {} twice{}; name it once and give the dataset more weight, or set "
                  "data.allow_overlap: true",
                  key, file.path, other->second == file.path ? "" : fmt::format(", also as {}", other->second));
    }
  }
  return files;
}

std::string last_bytes(const FileOnDisk& file) {
  const InputFile input(file.path);
  Checksum checksum;
  add_file_bytes(checksum, input, std::max<int64_t>(0, file.bytes - kLastBytes), file.bytes);
  return checksum.hex();
}

// Compares two files of equal length by their last bytes and their fingerprints.
bool same_content(const FileOnDisk& a, const FileOnDisk& b) {
  return last_bytes(a) == last_bytes(b) && fingerprint_of({a.path}) == fingerprint_of({b.path});
}

}  // namespace

void check_overlap(const std::vector<DatasetSource>& train, const std::vector<DatasetSource>& validation) {
  std::map<Place, const FileOnDisk*> by_place;
  std::multimap<int64_t, const FileOnDisk*> by_size;
  const std::vector<FileOnDisk> trained = files_on_disk(train, "data.train");
  for (const FileOnDisk& file : trained) {
    if (by_place.try_emplace(file.place, &file).second) by_size.emplace(file.bytes, &file);
  }
  const auto refuse = [](const FileOnDisk& file, const FileOnDisk& held_out, const char* relation) {
    throw InputError(
        fmt::format("{} of data.train and {} of data.validation {}, so the run would train on the text that it is "
                    "validated on; leave the file out of one of them, or set data.allow_overlap: true",
                    file.path, held_out.path, relation));
  };
  for (const FileOnDisk& held_out : files_on_disk(validation, "data.validation")) {
    if (const auto found = by_place.find(held_out.place); found != by_place.end())
      refuse(*found->second, held_out, "are the same file");
    const auto [begin, end] = by_size.equal_range(held_out.bytes);
    for (auto other = begin; other != end; ++other) {
      if (same_content(*other->second, held_out)) refuse(*other->second, held_out, "have the same content");
    }
  }
}

}  // namespace octavo

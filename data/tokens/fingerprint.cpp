#include "data/tokens/fingerprint.h"

#include <sys/stat.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "core/files/file_identity.h"
#include "core/files/input_file.h"
#include "data/tokens/token_file.h"

namespace octavo {
namespace {

constexpr int64_t kBlockBytes = kFingerprintBytes / kFingerprintBlocks;

// Several files as one sequence of bytes.
class FileRow {
 public:
  void append(const std::string& path) {
    const int64_t size = InputFile(path).size_bytes();
    files_.push_back({path, bytes_, bytes_ + size});
    bytes_ += size;
  }

  void add_to(Checksum& checksum) const {
    const auto count = static_cast<int64_t>(files_.size());
    checksum.add(&count, sizeof(count));
    for (const File& file : files_) checksum.add(&file.end, sizeof(file.end));
    std::optional<InputFile> open;  // Last file that was read, because neighbouring blocks are often in the same one.
    if (bytes_ <= kFingerprintBytes) return add_range(checksum, open, 0, bytes_);
    for (int64_t i = 0; i < kFingerprintBlocks; ++i) {
      const int64_t begin = spread_block_begin(bytes_, kBlockBytes, kFingerprintBlocks, i);
      add_range(checksum, open, begin, begin + kBlockBytes);
    }
  }

 private:
  struct File {
    std::string path;
    int64_t begin = 0, end = 0;  // Range of a file in the sequence.
  };

  void add_range(Checksum& checksum, std::optional<InputFile>& open, int64_t begin, int64_t end) const {
    auto file = std::ranges::upper_bound(files_, begin, {}, &File::end);
    for (; begin < end; ++file) {
      if (file->begin == file->end) continue;
      if (!open || open->path() != file->path) open.emplace(file->path);
      const int64_t until = std::min(end, file->end);
      add_file_bytes(checksum, *open, begin - file->begin, until - file->begin);
      begin = until;
    }
  }

  std::vector<File> files_;
  int64_t bytes_ = 0;
};

struct FileTime {
  int64_t bytes = 0;
  int64_t modified_ns = 0;
};

// Returns zeros if the file does not exist.
FileTime look_up(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return {};
  constexpr int64_t kSecond = 1'000'000'000;
  const int64_t seconds =
      std::clamp<int64_t>(found.st_mtim.tv_sec, 0, std::numeric_limits<int64_t>::max() / kSecond - 1);
  return {found.st_size, seconds * kSecond + found.st_mtim.tv_nsec};
}

}  // namespace

std::string fingerprint_of(const std::vector<std::string>& paths) {
  FileRow indexes, tokens;
  for (const std::string& path : paths) {
    const std::string prefix = token_file_prefix(path);
    if (path_exists(prefix + ".idx")) indexes.append(prefix + ".idx");
    tokens.append(prefix + ".bin");
  }
  Checksum checksum;
  indexes.add_to(checksum);
  tokens.add_to(checksum);
  return checksum.hex();
}

std::vector<SampledFile> sampled_files(const std::vector<std::string>& paths) {
  std::vector<SampledFile> files;
  int64_t index_bytes = 0, token_bytes = 0;
  for (const std::string& path : paths) {
    const std::string prefix = token_file_prefix(path);
    const FileTime index = look_up(prefix + ".idx"), tokens = look_up(prefix + ".bin");
    index_bytes += index.bytes;
    token_bytes += tokens.bytes;
    files.push_back({prefix + ".bin", std::max(index.modified_ns, tokens.modified_ns)});
  }
  const bool reads_all = index_bytes <= kFingerprintBytes && token_bytes <= kFingerprintBytes;
  return reads_all ? std::vector<SampledFile>() : files;
}

}  // namespace octavo

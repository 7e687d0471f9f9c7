#include "data/tokens/fingerprint.h"

#include <algorithm>
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
    Reader reader{checksum};
    if (bytes_ <= kFingerprintBytes) return add_range(reader, 0, bytes_);
    for (int64_t i = 0; i < kFingerprintBlocks; ++i) {
      const int64_t begin = spread_block_begin(bytes_, kBlockBytes, kFingerprintBlocks, i);
      add_range(reader, begin, begin + kBlockBytes);
    }
  }

 private:
  struct File {
    std::string path;
    int64_t begin = 0, end = 0;  // Range of a file in the sequence.
  };
  // Keeps the last file open, because neighbouring blocks are often in the same one.
  struct Reader {
    Checksum& checksum;
    std::optional<InputFile> open = {};
  };

  void add_range(Reader& reader, int64_t begin, int64_t end) const {
    auto file = std::upper_bound(files_.begin(), files_.end(), begin,
                                 [](int64_t at, const File& candidate) { return at < candidate.end; });
    for (; begin < end; ++file) {
      if (file->begin == file->end) continue;
      if (!reader.open || reader.open->path() != file->path) reader.open.emplace(file->path);
      const int64_t until = std::min(end, file->end);
      add_file_bytes(reader.checksum, *reader.open, begin - file->begin, until - file->begin);
      begin = until;
    }
  }

  std::vector<File> files_;
  int64_t bytes_ = 0;
};

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

}  // namespace octavo

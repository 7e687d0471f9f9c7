#include "core/files/file_identity.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "core/error.h"

namespace octavo {
namespace {

constexpr int64_t kReadBytes = int64_t{1} << 20;
constexpr int64_t kSamples = 64;
constexpr int64_t kSampleBytes = 4096;

std::string identity(const InputFile& file, const Checksum& checksum) {
  return fmt::format("{} of {} bytes, xxh3 {}", file.path(), file.size_bytes(), checksum.hex());
}

}  // namespace

void add_file_bytes(Checksum& checksum, const InputFile& file, int64_t begin, int64_t end) {
  std::vector<std::byte> block(static_cast<size_t>(std::clamp<int64_t>(end - begin, 0, kReadBytes)));
  while (begin < end) {
    const auto wanted = static_cast<size_t>(std::min(end - begin, kReadBytes));
    const int64_t count = file.read_at(begin, std::span(block).first(wanted));
    CHECK_INPUT(count > 0, "{}: cannot be read at byte {}: it ends there", file.path(), begin);
    checksum.add(block.data(), count);
    begin += count;
  }
}

int64_t spread_block_begin(int64_t bytes, int64_t block_bytes, int64_t count, int64_t i) {
  // Avoids multiplying by the size, which may be petabytes.
  const int64_t last = bytes - block_bytes;
  return last / (count - 1) * i + last % (count - 1) * i / (count - 1);
}

std::string file_identity(const std::string& path) {
  const InputFile file(path);
  Checksum checksum;
  add_file_bytes(checksum, file, 0, file.size_bytes());
  return identity(file, checksum);
}

std::string sampled_file_identity(const std::string& path) {
  const InputFile file(path);
  const int64_t size = file.size_bytes();
  if (size <= kSamples * kSampleBytes) return file_identity(path);
  Checksum checksum;
  for (int64_t i = 0; i < kSamples; ++i) {
    const int64_t begin = spread_block_begin(size, kSampleBytes, kSamples, i);
    add_file_bytes(checksum, file, begin, begin + kSampleBytes);
  }
  return identity(file, checksum);
}

}  // namespace octavo

#include "data/text/file_kind.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>

namespace octavo {
namespace {

struct ContentSuffix {
  std::string_view suffix;
  Content content;
};

constexpr std::array kContents = {
    ContentSuffix{".jsonl", Content::kJsonLines},  ContentSuffix{".jsonlines", Content::kJsonLines},
    ContentSuffix{".ndjson", Content::kJsonLines}, ContentSuffix{".json", Content::kJson},
    ContentSuffix{".parquet", Content::kParquet},
};

constexpr std::array<std::string_view, 7> kUnreadCompressions = {".7z", ".br", ".lz4", ".lzma", ".rar", ".z", ".zip"};

// Returns ".txt" for "a.TXT".
std::string suffix_of(const std::filesystem::path& path) {
  std::string suffix = path.extension().string();
  std::transform(suffix.begin(), suffix.end(), suffix.begin(), [](unsigned char c) { return std::tolower(c); });
  return suffix;
}

}  // namespace

FileKind kind_of_file(const std::string& path) {
  std::filesystem::path name = std::filesystem::path(path).filename();
  FileKind kind{.suffix = suffix_of(name)};
  const auto compression = std::find_if(kCompressions.begin(), kCompressions.end(),
                                        [&](const Compression& c) { return c.suffix == kind.suffix; });
  if (compression != kCompressions.end()) kind.compression = &*compression;
  kind.is_unread_compression =
      std::find(kUnreadCompressions.begin(), kUnreadCompressions.end(), kind.suffix) != kUnreadCompressions.end();
  kind.is_known = kind.compression != nullptr || kind.is_unread_compression;
  std::string inner = kind.suffix;
  if (kind.is_known) {
    inner = suffix_of(name.stem());
    kind.suffix.insert(0, inner);
  }
  const auto content =
      std::find_if(kContents.begin(), kContents.end(), [&](const ContentSuffix& row) { return row.suffix == inner; });
  if (content == kContents.end()) return kind;
  kind.content = content->content;
  kind.is_known = true;
  return kind;
}

std::string without_compression(const std::string& path) {
  const FileKind kind = kind_of_file(path);
  return kind.compression == nullptr ? path : path.substr(0, path.size() - kind.compression->suffix.size());
}

}  // namespace octavo

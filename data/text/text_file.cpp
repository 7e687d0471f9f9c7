#include "data/text/text_file.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <span>

#include "core/error.h"
#include "core/format.h"

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
std::string suffix_of(const std::filesystem::path& path) { return lower_case(path.extension().string()); }

}  // namespace

FileKind kind_of_file(const std::string& path) {
  std::filesystem::path name = std::filesystem::path(path).filename();
  FileKind kind{.suffix = suffix_of(name)};
  const auto* compression = std::ranges::find(kCompressions, kind.suffix, &Compression::suffix);
  if (compression != kCompressions.end()) kind.compression = compression;
  kind.is_unread_compression = std::ranges::find(kUnreadCompressions, kind.suffix) != kUnreadCompressions.end();
  kind.is_known = kind.compression != nullptr || kind.is_unread_compression;
  std::string inner = kind.suffix;
  if (kind.is_known) {
    inner = suffix_of(name.stem());
    kind.suffix.insert(0, inner);
  }
  const auto* content = std::ranges::find(kContents, inner, &ContentSuffix::suffix);
  if (content == kContents.end()) return kind;
  kind.content = content->content;
  kind.is_known = true;
  return kind;
}

std::string without_compression(const std::string& path) {
  const FileKind kind = kind_of_file(path);
  return kind.compression == nullptr ? path : path.substr(0, path.size() - kind.compression->suffix.size());
}

TextFile::TextFile(const std::string& path, const Compression* compression) : file_(path), compression_(compression) {
  if (compression == nullptr) return;
  decoder_ = compression->make();
  CHECK_INPUT(
      decoder_ != nullptr,
      "{}: is compressed with {}, for which this octavo was built without the library; run scripts/setup.sh and "
      "build again",
      path, compression->name);
}

void TextFile::check_intact(bool intact, std::string_view fault) const {
  if (!intact) throw DamagedFile(fmt::format("{}: is not an intact {} file: {}", path(), compression_->name, fault));
}

void TextFile::refill() {
  if (!left_.empty()) return;
  packed_.clear();
  file_.read_some(packed_, kBlockBytes);
  left_ = packed_;
}

bool TextFile::read_block(std::string& block) {
  if (!decoder_) {
    block.clear();
    return file_.read_some(block, kBlockBytes) > 0;
  }
  for (;;) {
    refill();
    const bool at_end = left_.empty();
    if (!is_in_frame_) {
      left_.remove_prefix(std::min(left_.find_first_not_of('\0'), left_.size()));
      if (at_end) return false;
      if (left_.empty()) continue;
    }
    block.resize(static_cast<size_t>(kBlockBytes));
    std::span<char> out(block);
    const Decoder::Result result = decoder_->decode(left_, out);
    check_intact(result.fault.empty(), result.fault);
    block.resize(block.size() - out.size());
    is_in_frame_ = !result.ends_frame;
    check_intact(!at_end || !is_in_frame_ || !block.empty(),
                 file_.size_bytes() == 0 ? "it is empty" : "it ends within a frame");
    if (!block.empty()) return true;
  }
}

bool TextFile::read_line(std::string& line) {
  line.clear();
  for (;;) {
    const size_t end = text_.find('\n', line_begin_);
    line.append(text_, line_begin_, end == std::string::npos ? end : end - line_begin_);
    if (static_cast<int64_t>(line.size()) > kMaxDocumentBytes) throw too_long(path());
    if (end != std::string::npos) {
      line_begin_ = end + 1;
      return true;
    }
    line_begin_ = 0;
    if (!read_block(text_)) {
      text_.clear();
      return !line.empty();
    }
  }
}

InputError too_long(const std::string& path) {
  return InputError(
      fmt::format("{}: has a document of more than {} GiB; divide it (a text file is one document, and "
                  "JSON lines have one per line)",
                  path, kMaxDocumentBytes >> 30));
}

}  // namespace octavo

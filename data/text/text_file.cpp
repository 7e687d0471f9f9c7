#include "data/text/text_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace octavo {
namespace {

// Replaces `block` by up to `bytes` bytes of the file. The block is empty only at the end of the file.
void read_bytes(const InputFile& file, std::string& block, int64_t bytes) {
  block.resize(static_cast<size_t>(bytes));
  ssize_t count = 0;
  do {
    count = ::read(file.descriptor(), block.data(), block.size());
  } while (count < 0 && errno == EINTR);
  if (count < 0) throw UnreadableFile(fmt::format("{}: cannot be read: {}", file.path(), std::strerror(errno)));
  block.resize(static_cast<size_t>(count));
}

}  // namespace

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
  read_bytes(file_, packed_, kBlockBytes);
  left_ = packed_;
}

bool TextFile::read_block(std::string& block) {
  if (!decoder_) {
    read_bytes(file_, block, kBlockBytes);
    return !block.empty();
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

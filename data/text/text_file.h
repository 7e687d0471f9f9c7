// Files of text. Their names say what they are: docs/data.md states the rule, scripts/tokenizing/inputs.py has the same
// tables, and tests/data/text/inputs.json has the cases that both must agree on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/files/input_file.h"
#include "data/text/decoder.h"

namespace octavo {

enum class Content {
  kText,       // One document.
  kJsonLines,  // One document per line.
  kJson,       // JSON lines if the first line is an object with the text. Otherwise the file is not read.
  kParquet,    // One document per row. Only scripts/tokenize_hf.py reads it.
};

struct FileKind {
  Content content = Content::kText;
  const Compression* compression = nullptr;  // Null for a plain file.
  bool is_known = false;                     // Whether a suffix is in one of the tables.
  bool is_unread_compression = false;        // Whether a suffix names a compression that is not unpacked.
  std::string suffix = {};                   // Suffixes in lower case, such as ".jsonl.gz". Empty if there is none.
};

// Returns the kind of a file according to the suffixes of its name, in upper or lower case.
FileKind kind_of_file(const std::string& path);

// Returns `path` without the suffix of a compression that is unpacked.
std::string without_compression(const std::string& path);

// Maximum size of a document. A longer one needs memory in proportion to it, and is more likely a file of another kind.
inline constexpr int64_t kMaxDocumentBytes = int64_t{1} << 30;

// Error for a compressed file that is damaged or ends early.
class DamagedFile : public InputError {
 public:
  using InputError::InputError;
};

// A file of text, plain or compressed, which is read from the beginning to the end, either as blocks or as lines.
// Memory does not grow with the file. Used by one thread.
class TextFile {
 public:
  // Throws UnreadableFile, and an InputError if the build cannot unpack the `compression`, which is null for a plain
  // file.
  TextFile(const std::string& path, const Compression* compression);

  const std::string& path() const { return file_.path(); }

  // Replaces `block` by the next bytes, at most kBlockBytes. Returns false at the end of the file. Throws DamagedFile
  // if a compressed file is damaged or ends within a frame. Zero bytes after a frame are ignored, as gzip and xz do.
  bool read_block(std::string& block);
  // Reads the next line without its end. Returns false at the end of the file. Throws an InputError if it is longer
  // than kMaxDocumentBytes.
  bool read_line(std::string& line);

  static constexpr int64_t kBlockBytes = int64_t{1} << 18;

 private:
  void refill();
  void check_intact(bool intact, std::string_view fault) const;

  InputFile file_;
  const Compression* compression_;
  std::unique_ptr<Decoder> decoder_;  // Null for a plain file.
  std::string packed_;                // Bytes of the file that were read last.
  std::string_view left_;             // Bytes of packed_ that are not yet unpacked.
  bool is_in_frame_ = true;           // Whether the end of a frame must follow. A compressed file has at least one.
  std::string text_;                  // Block that read_line() divides, from line_begin_ on.
  size_t line_begin_ = 0;
};

// Returns the error of a document that exceeds kMaxDocumentBytes.
InputError too_long(const std::string& path);

}  // namespace octavo

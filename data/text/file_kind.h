// Decides by its name what a file of text is. docs/data.md states the rule, scripts/tokenizing/inputs.py has the same
// tables, and tests/data/text/inputs.json has the cases that both must agree on.
#pragma once

#include <string>

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

// Returns the kind of the file at `path`, whose letters may be upper or lower case.
FileKind kind_of_file(const std::string& path);

// Returns `path` without the suffix of a compression that is unpacked.
std::string without_compression(const std::string& path);

}  // namespace octavo

// Reads a token file as Octavo does, and compares the results with the guarantees of token_file.h and token_stream.h.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/tokens/token_file.h"
#include "data/tokens/token_stream.h"
#include "tests/fuzz/fuzz_target.h"

namespace octavo::fuzz {

inline constexpr int64_t kReadTokens = 512;  // Maximum number of tokens that are read from a stream.

inline DocumentTokens inserted_tokens(bool with_bos, bool with_eos) {
  DocumentTokens tokens;
  if (with_bos) tokens.bos = 1;
  if (with_eos) tokens.eos = 2;
  return tokens;
}

// Checks a file that does not change: documents are adjacent, and each is found at its tokens.
inline void check_documents(const TokenFile& file) {
  int64_t begin = 0;
  for (int64_t d = 0; d < file.num_documents(); ++d) {
    require(file.document_begin(d) == begin, "documents lie one behind the other");
    const int64_t length = file.document_length(d);
    if (length > 0) require(file.find_document(begin + length - 1, 0) == d, "a document is found at its last token");
    begin += length;
  }
  require(begin == file.num_tokens() && file.document_begin(file.num_documents()) == begin,
          "documents hold all tokens");
}

inline void check_vocabulary(const TokenFile& file, int64_t vocab_size) {
  if (!accepts([&] { file.check_vocabulary(vocab_size); })) return;
  std::array<int32_t, 64> ids{};
  for (int64_t d = 0; d < file.num_documents(); ++d) {
    const auto count = std::min<int64_t>(static_cast<int64_t>(ids.size()), file.document_length(d));
    const auto read = std::span(ids).first(static_cast<size_t>(count));
    file.copy(d, 0, read);
    require(find_outside_vocabulary(read, vocab_size) < 0, "a checked file holds no id outside the vocabulary");
  }
}

struct StreamRead {
  std::vector<int32_t> tokens, document_start;
};

inline StreamRead read_stream(const TokenStream& stream, int64_t begin, int64_t count) {
  StreamRead read{std::vector<int32_t>(static_cast<size_t>(count)), std::vector<int32_t>(static_cast<size_t>(count))};
  stream.read(begin, read.tokens, read.document_start);
  return read;
}

// Checks windows over the stream and across its end. If the file does not change, they must equal a read from the
// beginning.
inline void check_windows(const TokenStream& stream, bool changes) {
  const int64_t tokens = stream.num_tokens();
  const int64_t all = std::min(tokens, kReadTokens);
  std::optional<StreamRead> whole;
  const auto read_whole = [&] { whole = read_stream(stream, 0, all); };
  if (!accepts(read_whole)) require(changes, "a stream that was opened can be read");
  for (int64_t i = 0; i < 8; ++i) {
    const int64_t begin = tokens / 8 * i + tokens % 8 * i / 8;
    std::optional<StreamRead> window;
    const bool is_read = accepts([&] { window = read_stream(stream, begin, std::min<int64_t>(all, 5 + 3 * i)); });
    require(is_read || changes, "a window of a stream that was opened can be read");
    if (!is_read || changes || begin + static_cast<int64_t>(window->tokens.size()) > all) continue;
    for (size_t t = 0; t < window->tokens.size(); ++t) {
      const auto at = static_cast<size_t>(begin) + t;
      require(window->tokens[t] == whole->tokens[at], "a window holds the tokens of the stream");
      const auto start = std::max<int64_t>(0, whole->document_start[at] - begin);
      require(window->document_start[t] == start, "a window knows where its documents begin");
    }
  }
}

}  // namespace octavo::fuzz

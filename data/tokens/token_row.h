// A dataset as one long row of tokens: the documents of its files, one file after the other, each document in the order
// of its file and with bos and eos around it where they are set; the end is joined to the beginning.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/tokens/token_file.h"

namespace octavo {

struct TokenRowOptions {
  std::optional<int32_t> bos_id = {};
  std::optional<int32_t> eos_id = {};
  int64_t vocab_size = 0;  // every token must lie in [0, vocab_size); 0 checks nothing
};

// The token files that `path` names: itself, or, of a folder, all in it and below, by their paths' bytes. InputError
// where a folder has none.
std::vector<std::string> find_token_files(const std::string& path);

// Movable. read() is safe to call from several threads.
class TokenRow {
 public:
  // Opens `paths` (each as TokenFile takes it). Of many files only the first are opened and checked whole, as long as
  // that reads no more than kOpenedIndexBytes of their indexes; of the others the headers, and the rest when they are
  // first read. InputError as TokenFile, and when no file has a token.
  TokenRow(const std::vector<std::string>& paths, const TokenRowOptions& options);
  TokenRow(TokenRow&&) noexcept;
  TokenRow& operator=(TokenRow&&) noexcept;
  ~TokenRow();

  int64_t num_tokens() const { return num_tokens_; }        // M, bos and eos included
  int64_t num_documents() const { return num_documents_; }  // of llm.c shards not yet opened none are counted
  int64_t num_files() const { return static_cast<int64_t>(files_.size()); }
  const std::string& path(int64_t file) const;  // as given

  // Copies the tokens from `begin`, 0 <= begin < M, on, past the end from the beginning again, however many `tokens`
  // are. `document_start`, as long or shorter (the first of them), receives for each token the position in `tokens` of
  // the first token of its document, 0 where that lies before. InputError when a file is broken or has been changed,
  // Error naming file, document and position when a token lies outside the vocabulary.
  void read(int64_t begin, std::span<int32_t> tokens, std::span<int32_t> document_start) const;

  static constexpr int64_t kOpenedIndexBytes = int64_t{1} << 30;

 private:
  struct File;
  // What is yet to be filled of a read.
  struct Target {
    std::span<int32_t> tokens;
    std::span<int32_t> document_start;
    size_t done = 0;
  };
  struct StoredDocument {
    int64_t index = 0;   // in its file
    int64_t length = 0;  // without bos and eos
  };
  const TokenFile& open(const File& file) const;
  void read_file(const File& file, int64_t position, Target& target) const;
  void read_document(const TokenFile& file, const StoredDocument& document, int64_t offset,
                     std::span<int32_t> out) const;
  void check_ids(const TokenFile& file, int64_t document, int64_t position, std::span<const int32_t> ids) const;

  TokenRowOptions options_;
  int64_t extra_tokens_ = 0;  // bos and eos of a document
  std::vector<std::unique_ptr<File>> files_;
  int64_t num_tokens_ = 0;
  int64_t num_documents_ = 0;
};

}  // namespace octavo

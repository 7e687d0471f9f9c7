// A dataset as one long stream of tokens: the documents of its files in order, each with bos and eos around it if they
// are set. The end is joined to the beginning.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/tokens/token_file.h"

namespace octavo {

// Returns the token files that `path` names: the path itself, or all token files in a folder and below
// (core/files/file_tree.h), in bytewise order of their paths and each once. If a file has several names, adds all but
// the first to `repeated` (optional). Throws an InputError if a folder has none or cannot be listed.
std::vector<std::string> find_token_files(const std::string& path, std::vector<std::string>* repeated = nullptr);

// One stream of tokens. Movable. read() is safe to call from several threads.
class TokenStream {
 public:
  // Opens `paths` (each as TokenFile takes it). Files are opened and checked completely as long as that reads at most
  // kOpenedIndexBytes of their indexes. Only the headers of later files are read; the rest is checked when a file is
  // first read. `inserted` is inserted around each document, except for tokens that the documents of a file have
  // already (find_stored_tokens). A token outside [0, vocab_size) is refused when it is read; 0 disables this check.
  // Throws an InputError like TokenFile, and if no file has a token.
  TokenStream(const std::vector<std::string>& paths, const DocumentTokens& inserted, int64_t vocab_size = 0);
  TokenStream(TokenStream&&) noexcept;
  TokenStream& operator=(TokenStream&&) noexcept;
  ~TokenStream();

  int64_t num_tokens() const { return num_tokens_; }  // Returns M, the number of tokens with bos and eos.
  int64_t num_files() const { return static_cast<int64_t>(files_.size()); }
  const std::string& path(int64_t file) const;  // Returns the path as it was given.
  // Returns the path of the file that contains a position.
  const std::string& path_at(int64_t position) const;
  // Return the number of files whose documents contain the bos or eos already.
  int64_t files_with_bos() const { return files_with_bos_; }
  int64_t files_with_eos() const { return files_with_eos_; }
  // Returns whether llm.c shards were opened and each of them is a single document. So no token was found at
  // which their documents could be divided.
  bool is_undivided() const { return is_undivided_; }

  // Copies tokens.size() tokens from position `begin`, 0 <= begin < M, continuing at the beginning of the stream after
  // its end. For the first document_start.size() tokens, `document_start` receives the position in `tokens` of the
  // first token of the token's document, or 0 if the document began before `begin`. Throws an InputError if a file is
  // broken or was changed, and an Error with the file, document and position if a token lies outside the vocabulary.
  void read(int64_t begin, std::span<int32_t> tokens, std::span<int32_t> document_start) const;

  static constexpr int64_t kOpenedIndexBytes = int64_t{1} << 30;

 private:
  struct File;
  // The buffers of a read, and the number of tokens that are filled.
  struct Target {
    std::span<int32_t> tokens;
    std::span<int32_t> document_start;
    size_t done = 0;
  };
  struct StoredDocument {
    int64_t index = 0;   // Number of the document in its file.
    int64_t length = 0;  // Length of the document without bos and eos.
  };
  const File& file_at(int64_t position) const;
  const TokenFile& open(const File& file) const;
  void read_file(const File& source, int64_t position, Target& target) const;
  void read_document(const File& source, const StoredDocument& document, int64_t offset, std::span<int32_t> out) const;
  void check_ids(const TokenFile& file, int64_t document, int64_t position, std::span<const int32_t> ids) const;

  DocumentTokens inserted_;
  int64_t vocab_size_;
  std::vector<std::unique_ptr<File>> files_;
  int64_t num_tokens_ = 0;
  int64_t files_with_bos_ = 0;
  int64_t files_with_eos_ = 0;
  bool is_undivided_ = false;
};

}  // namespace octavo

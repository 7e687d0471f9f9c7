// Writes a Megatron indexed dataset (data/tokens/token_file.h), with a PREFIX.json that says how it was made.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/files/output_file.h"
#include "data/tokens/token_file.h"

namespace octavo {

// Facts about the tokens that PREFIX.json records. Training does not need them.
struct TokenFileInfo {
  std::string tokenizer = {};  // "byte", or the name of a Hugging Face tokenizer. Null in the JSON if empty.
  int64_t vocab_size = 0;      // Size of the vocabulary. Null in the JSON if 0.
  // Ids of bos and eos in the tokenizer. The writer does not add these tokens to the file.
  std::optional<int32_t> bos = {}, eos = {};
};

// Used by one thread. Writes under temporary names until finish() gives the files their names, .idx last. So an
// interrupted writer leaves no incomplete dataset, and an older dataset of the same name stays until then. Documents
// are streamed to disk; memory grows by 4 bytes per document.
class TokenFileWriter {
 public:
  // Throws an InputError if PREFIX.bin cannot be created.
  TokenFileWriter(const std::string& prefix, TokenDtype dtype, TokenFileInfo info = {});

  // Appends one document, which may be empty. Throws an InputError if an id does not fit the dtype or the document has
  // more than 2^31 - 1 tokens, and an Error if the disk is full.
  void add_document(std::span<const int32_t> tokens);

  // Writes the files of all writers to the device, and then gives them their names, or leaves all older files as they
  // were. Must be called once, after the last document. Throws an Error if the disk is full or the system refuses a
  // name.
  static void finish_together(std::span<TokenFileWriter* const> writers);
  void finish() {
    TokenFileWriter* const self = this;
    finish_together({&self, 1});
  }

  int64_t num_documents() const { return std::ssize(lengths_); }
  int64_t num_tokens() const { return num_tokens_; }

 private:
  // Writes PREFIX.idx and PREFIX.json, and all three files to the device, still under temporary names.
  void close();
  void write_index();
  std::string sidecar() const;

  std::string prefix_;
  TokenDtype dtype_;
  TokenFileInfo info_;
  OutputFile bin_;
  std::optional<OutputFile> idx_, json_;  // Index and sidecar, set by close().
  std::vector<int32_t> lengths_;          // Length of each document, which is one sequence.
  int64_t num_tokens_ = 0;
};

}  // namespace octavo

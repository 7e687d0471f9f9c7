// Writes a Megatron indexed dataset (see data/tokens/token_file.h), with a PREFIX.json beside it that says how it was
// made.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/files/output_file.h"
#include "data/tokens/token_file.h"

namespace octavo {

// What PREFIX.json records about the tokens; nothing of it is needed to train.
struct TokenFileInfo {
  std::string tokenizer = {};  // "byte", or the name of a Hugging Face tokenizer; null in the JSON when empty
  int64_t vocab_size = 0;      // null in the JSON when 0
  std::optional<int32_t> bos = {}, eos = {};  // ids the tokenizer has for them, not tokens of the file
};

// Used by one thread. Everything goes to temporary names; only publish() makes the files appear, .idx last, so that an
// interrupted writer leaves no half dataset, and an older one of the same name stays whole until then. Documents are
// streamed to disk; memory grows by 12 bytes a document.
class TokenFileWriter {
 public:
  // InputError when PREFIX.bin cannot be created.
  TokenFileWriter(const std::string& prefix, TokenDtype dtype, TokenFileInfo info = {});

  // Appends one document, possibly empty. InputError when an id does not fit the dtype; Error when the disk is full.
  void add_document(std::span<const int32_t> tokens);

  // Writes PREFIX.idx and PREFIX.json, and all three files down to the device, still under temporary names. Once,
  // behind the last document. Error when the disk is full.
  void close();
  // Gives the closed files of all writers their names, or leaves the older ones of all as they were. Error when the
  // system refuses a name.
  static void publish(std::span<TokenFileWriter* const> writers);
  void finish() {
    close();
    TokenFileWriter* const self = this;
    publish({&self, 1});
  }

  int64_t num_documents() const { return static_cast<int64_t>(document_ends_.size()); }
  int64_t num_tokens() const { return num_tokens_; }

 private:
  void write_index();
  std::string sidecar() const;

  std::string prefix_;
  TokenDtype dtype_;
  TokenFileInfo info_;
  OutputFile bin_;
  std::optional<OutputFile> idx_, json_;  // once they are closed
  std::vector<int32_t> sequence_lengths_;
  std::vector<int64_t> document_ends_;  // sequences up to and including each document
  int64_t num_tokens_ = 0;
};

}  // namespace octavo

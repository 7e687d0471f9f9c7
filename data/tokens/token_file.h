// Token files: documents of token ids, memory-mapped and read in place.
//
// Two formats are read, both little-endian:
//
//   Megatron indexed dataset: PREFIX.bin holds raw tokens, PREFIX.idx describes them:
//       9 bytes  "MMIDIDX\0\0"
//       u64      version, 1
//       u8       dtype code: 1 uint8, 4 int32, 8 uint16
//       u64      N, sequences
//       u64      D, document-index entries
//       i32[N]   length of each sequence in tokens
//       i64[N]   byte offset of each sequence in PREFIX.bin
//       i64[D]   document index: document d is the sequences [index[d], index[d+1]), so there are D-1 documents
//     The arrays start at byte 34, unaligned. The sequences of a document follow one another in the index, not
//     necessarily in PREFIX.bin.
//
//   llm.c shard: one .bin file, a header of 256 int32 (magic, version, token count, rest unused), then the tokens:
//       magic 20240520, version 1: uint16 GPT-2 tokens, each document led by 50256
//       magic 20240801, version 7: uint32 Llama 3 tokens, each document led by 128000
//     The documents are divided at the first of these tokens that can divide the shard: the reader's bos, the
//     reader's eos, the token above. Bos, the token above, and an eos with which the shard begins are the first tokens
//     of their documents. Any other eos is the last one. Tokens before the first division are a document too.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/mapped_file.h"

namespace octavo {

// Token types. The values are Megatron's codes on disk.
enum class TokenDtype : uint8_t { kU8 = 1, kI32 = 4, kU16 = 8 };

int64_t token_size_bytes(TokenDtype dtype);
std::string_view token_dtype_name(TokenDtype dtype);
// Returns the largest token id that the dtype can hold.
int64_t max_token_id(TokenDtype dtype);

// Removes a trailing ".bin" or ".idx": returns the PREFIX of a Megatron dataset.
std::string token_file_prefix(const std::string& path);

// Tokens around documents.
struct DocumentTokens {
  std::optional<int32_t> bos = {}, eos = {};
};

// Tokens that the documents of a token file contain already, so that the loader inserts no second one.
struct StoredTokens {
  bool bos = false;  // Whether the documents begin with the bos.
  bool eos = false;  // Whether the documents end, or begin, with the eos.
};

// Facts that the header and the sizes of a token file tell, without a TokenFile.
struct TokenFileCounts {
  int64_t tokens = 0;
  // Number of documents. Empty if it is known only after reading the tokens (llm.c).
  std::optional<int64_t> documents = {};
  int64_t index_bytes = 0;  // Bytes that opening the file reads: of PREFIX.idx, or of the shard.
};
// `path` is as for TokenFile. Throws the same InputErrors, as far as the header tells.
TokenFileCounts count_tokens(const std::string& path);
// Returns `count` tokens of a file in the order in which they are stored, without reading its index or other tokens.
// Throws like count_tokens.
// Requires: 0 <= begin and begin + count <= count_tokens(path).tokens.
std::vector<int32_t> read_stored_tokens(const std::string& path, int64_t begin, int64_t count);

// Returns the position in `ids` of the first id outside [0, vocab_size), or -1. Reads the ids once at memory speed if
// there is none.
int64_t find_outside_vocabulary(std::span<const int32_t> ids, int64_t vocab_size);

// Move-only. All methods are const and safe to call from several threads. The files are mapped, so changes of the files
// become visible. Each look-up in the index is therefore checked against the bounds again (InputError), and tokens are
// read as they are now. A truncated file ends the process (core/files/mapped_file.h).
class TokenFile {
 public:
  // Opens `path`: PREFIX, PREFIX.bin or PREFIX.idx, or an llm.c shard (a .bin without .idx). Checks everything that can
  // be checked without reading the tokens: magic, version, dtype, the sizes of both files against the counts, that
  // every sequence lies inside PREFIX.bin, that the sequences have no more tokens than are stored, and that the
  // document index rises from 0 to N. Throws an InputError with the file, what was found and what was expected. Zero
  // tokens and empty documents are valid.
  // `tokens` only divides the documents of an llm.c shard. If `checks_index` is false, only the headers of a Megatron
  // dataset are read and checked.
  // Requires: num_tokens(), document_begin() and find_document() are called only if `checks_index` is true.
  explicit TokenFile(const std::string& path, const DocumentTokens& tokens = {}, bool checks_index = true);

  // Returns the path of the file with the tokens.
  const std::string& path() const { return bin_.path(); }
  // Returns "megatron" or "llm.c".
  std::string_view format() const { return lengths_ != nullptr ? "megatron" : "llm.c"; }
  TokenDtype dtype() const { return dtype_; }
  int64_t num_documents() const { return num_documents_; }
  int64_t num_sequences() const { return num_sequences_; }
  int64_t num_tokens() const { return num_tokens_; }

  // Returns the number of tokens of a document, in time proportional to its sequences.
  // Requires: 0 <= document < num_documents().
  int64_t document_length(int64_t document) const;

  // Returns the number of tokens before a document in the order of the documents; num_tokens() for num_documents().
  int64_t document_begin(int64_t document) const;
  // Returns the last document d with document_begin(d) + d * extra <= position, by binary search. `extra` is the number
  // of tokens that a reader adds to every document. Returns 0 or throws an InputError if the index was damaged after
  // opening.
  int64_t find_document(int64_t position, int64_t extra) const;

  // Copies the tokens [begin, begin + out.size()) of a document as int32. A uint32 id of 2^31 or more becomes negative,
  // which no vocabulary contains. Throws an Error if the range does not lie inside the document.
  void copy(int64_t document, int64_t begin, std::span<int32_t> out) const;
  // Calls visit(ids, begin) for consecutive chunks of a document's first `length` tokens. `begin` is the position of
  // the chunk in the document.
  template <typename Visit>
  void for_each_piece(int64_t document, int64_t length, const Visit& visit) const {
    std::array<int32_t, 16384> buffer;
    for (int64_t begin = 0; begin < length; begin += std::ssize(buffer)) {
      const auto ids = std::span(buffer).first(static_cast<size_t>(std::min(std::ssize(buffer), length - begin)));
      copy(document, begin, ids);
      visit(std::span<const int32_t>(ids), begin);
    }
  }

  // Throws an InputError with the file, document and position of the first token id outside [0, vocab_size). Reads
  // every token of files of up to kFullScanBytes, and otherwise the beginnings of documents spread evenly over the
  // file. The loader checks every token that it returns anyway, so this check only decides how early a wrong file is
  // found.
  void check_vocabulary(int64_t vocab_size) const;

  static constexpr int64_t kFullScanBytes = int64_t{2} << 30;

 private:
  void open_megatron(const std::string& prefix, bool checks_index);
  void open_llm_c(const std::string& bin_path, const DocumentTokens& tokens);
  void check_sequences();
  void check_document_index() const;
  void find_document_begins();
  template <typename T>
  void find_llm_c_documents(const DocumentTokens& tokens, T leading_token);

  int64_t first_sequence(int64_t document) const;
  int64_t sequence_length(int64_t sequence) const;
  // Returns the byte offset of a sequence in PREFIX.bin or the shard. Throws an InputError unless a sequence of
  // `length` tokens at that offset lies inside the file.
  int64_t sequence_offset_bytes(int64_t sequence, int64_t length) const;

  MappedFile idx_;  // The index file. Not mapped for llm.c shards.
  MappedFile bin_;
  TokenDtype dtype_ = TokenDtype::kU16;
  int64_t num_sequences_ = 0, num_documents_ = 0, num_tokens_ = 0;
  // The three unaligned arrays inside idx_ of a Megatron dataset. Null for a shard, whose documents are its sequences.
  const std::byte* lengths_ = nullptr;
  const std::byte* offsets_ = nullptr;
  const std::byte* document_index_ = nullptr;
  // Whether PREFIX.bin holds the sequences in the order of the index, so that byte offsets tell how many tokens come
  // before a sequence.
  bool in_order_ = true;
  // Number of tokens before each document, then the total. Used for llm.c files and for Megatron files whose documents
  // are not in order.
  std::vector<int64_t> begins_;
  // Number of tokens before every kStride-th document, so that a search reads few pages of the index. Used for Megatron
  // files whose documents are in order.
  static constexpr int64_t kStride = 4096;
  std::vector<int64_t> sparse_begins_;
};

// Returns which of `tokens` the documents of a file contain already, judged by a sample of documents: bos if all begin
// with it, and eos if all end or all begin with it. Reads a few documents of `file`. If a Megatron dataset is not open,
// `file` is null, and a few pages of the dataset are read. The first and the last document of a shard may be cut, so
// they do not count.
StoredTokens find_stored_tokens(const std::string& path, const TokenFile* file, const DocumentTokens& tokens);

// Returns a text that identifies this version of the file (core/files/file_identity.h), from its whole index, if there
// is one, and samples of its tokens.
std::string token_file_identity(const std::string& path);

}  // namespace octavo

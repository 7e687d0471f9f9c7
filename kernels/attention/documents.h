// The documents of a micro-batch, for attention that stays within them (kernels/attention/sdpa.h): runs of tokens, each
// of one sequence, that together are all tokens of the micro-batch. Of a rank that has pieces of each sequence
// (core/sequence_pieces.h), tokens are its own, and a run lies in one piece; its document may begin before it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/sequence_pieces.h"
#include "core/tensor.h"

namespace octavo {

struct Document {
  int32_t begin = 0;  // its first token, counted over the micro-batch
  int32_t length = 0;
  int32_t before = 0;  // tokens of the document before the first, which lie in other pieces
  // What its last token attends to.
  constexpr int64_t keys() const { return int64_t{before} + length; }
  bool operator==(const Document&) const = default;
};

struct Documents {
  std::span<const Document> list;  // on the host, most keys first; empty: every sequence is one document
  Tensor device;                   // [count, 3] int32: begin, length and before of each, where a GPU reads them
  bool empty() const { return list.empty(); }
  int64_t size() const { return static_cast<int64_t>(list.size()); }
};

// Appends the documents of a micro-batch, those of most keys first. document_start: of every token of the rank,
// [tokens], the position in its sequence at which its document begins there. seq_len: tokens of a sequence on this
// rank.
void append_documents(std::span<const int32_t> document_start, int64_t seq_len, std::vector<Document>& documents,
                      const ContextRank& context = {});

// Writes them as Documents::device has them: kNumbersOfDocument * documents.size() numbers.
inline constexpr int64_t kNumbersOfDocument = 3;
void write_documents(std::span<const Document> documents, int32_t* numbers);

}  // namespace octavo

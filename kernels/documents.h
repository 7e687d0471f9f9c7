// The documents of a micro-batch, for attention that stays within them (kernels/sdpa.h): runs of tokens, each of one
// sequence, that together are all tokens of the micro-batch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor.h"

namespace octavo {

struct Document {
  int32_t begin = 0;  // its first token, counted over the micro-batch
  int32_t length = 0;
  bool operator==(const Document&) const = default;
};

struct Documents {
  std::span<const Document> list;  // on the host, longest first; empty: every sequence is one document
  Tensor device;                   // [count, 2] int32: the list again, where a GPU reads it
  bool empty() const { return list.empty(); }
  int64_t size() const { return static_cast<int64_t>(list.size()); }
};

// Appends the documents of a micro-batch, longest first. document_start: of every token, [tokens], the position in its
// sequence of seq_len at which its document begins there.
void append_documents(std::span<const int32_t> document_start, int64_t seq_len, std::vector<Document>& documents);

}  // namespace octavo

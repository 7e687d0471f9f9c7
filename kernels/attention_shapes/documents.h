// Documents of a micro-batch, for attention within documents (kernels/attention/sdpa.h). Each document is a run of
// tokens of one sequence; together the runs cover all tokens of the micro-batch. Under context parallelism
// (core/sequence_chunks.h), a run consists of this rank's tokens and lies in one chunk of the sequence, and its
// document may begin in an earlier chunk.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/sequence_chunks.h"
#include "core/tensor.h"

namespace octavo {

struct Document {
  int32_t begin = 0;  // Index of the run's first token in the micro-batch.
  int32_t length = 0;
  // Number of tokens of the document that come before the run's first token, in earlier chunks.
  int32_t before = 0;
  // Returns the number of keys that the last token attends to.
  constexpr int64_t keys() const { return int64_t{before} + length; }
  bool operator==(const Document&) const = default;
};

struct Documents {
  // Documents on the host, in the order of their tokens. If empty, every sequence is one document.
  std::span<const Document> list;
  // [count, 3] int32: begin, length and before of each document. Read by GPUs.
  Tensor device;
  bool empty() const { return list.empty(); }
  int64_t size() const { return static_cast<int64_t>(list.size()); }
};

// Appends the documents of a micro-batch in the order of their tokens. document_start [tokens] has, for every token of
// the rank, the position in its sequence at which its document begins. seq_len is the number of tokens of a sequence on
// this rank.
void append_documents(std::span<const int32_t> document_start, int64_t seq_len, std::vector<Document>& documents,
                      const ContextRank& context = {});

// Writes the documents in the format of Documents::device: kNumbersOfDocument * documents.size() numbers.
inline constexpr int64_t kNumbersOfDocument = 3;
void write_documents(std::span<const Document> documents, int32_t* numbers);

}  // namespace octavo

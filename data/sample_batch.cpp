#include "data/sample_batch.h"

#include <algorithm>

namespace octavo {

void resize(Batch& batch, int64_t rows, int64_t seq_len) {
  for (std::vector<int32_t>* array : {&batch.inputs, &batch.targets, &batch.document_start}) {
    array->resize(static_cast<size_t>(rows * seq_len));
  }
}

void read_sample(const SampleStream& stream, const Sample& sample, int64_t row, SampleScratch& scratch, Batch& batch) {
  const auto& [tokens, document_start] = scratch;
  stream.read(sample, scratch.tokens, scratch.document_start);
  const int64_t begin = row * stream.seq_len();
  std::copy(tokens.begin(), tokens.end() - 1, batch.inputs.begin() + begin);
  std::copy(tokens.begin() + 1, tokens.end(), batch.targets.begin() + begin);
  std::copy(document_start.begin(), document_start.end() - 1, batch.document_start.begin() + begin);
  if (!stream.document_mask()) return;
  for (size_t t = 1; t < tokens.size(); ++t) {
    const bool begins = document_start[t] == static_cast<int64_t>(t);
    if (begins) batch.targets[static_cast<size_t>(begin) + t - 1] = -1;
  }
}

void pad_row(Batch& batch, int64_t row, int64_t seq_len) {
  const int64_t begin = row * seq_len;
  std::fill_n(batch.inputs.begin() + begin, seq_len, 0);
  std::fill_n(batch.targets.begin() + begin, seq_len, -1);
  std::fill_n(batch.document_start.begin() + begin, seq_len, 0);
}

}  // namespace octavo

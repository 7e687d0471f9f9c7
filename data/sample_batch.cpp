#include "data/sample_batch.h"

#include <algorithm>

namespace octavo {

void read_sample(SampleStream& stream, bool document_mask, SampleScratch& scratch, int64_t row, Batch& batch) {
  const auto& [tokens, document_start] = scratch;
  stream.next(scratch.tokens, scratch.document_start, nullptr);
  const int64_t begin = row * stream.seq_len();
  std::copy(tokens.begin(), tokens.end() - 1, batch.inputs.begin() + begin);
  std::copy(tokens.begin() + 1, tokens.end(), batch.targets.begin() + begin);
  std::copy(document_start.begin(), document_start.end() - 1, batch.document_start.begin() + begin);
  if (!document_mask) return;
  for (size_t t = 1; t < tokens.size(); ++t) {
    const bool begins = document_start[t] == static_cast<int64_t>(t);
    if (begins) batch.targets[static_cast<size_t>(begin) + t - 1] = -1;
  }
}

}  // namespace octavo

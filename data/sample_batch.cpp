#include "data/sample_batch.h"

#include <algorithm>

namespace octavo {

void read_sample(SampleStream& stream, std::span<int32_t> scratch, int64_t row, Batch& batch) {
  const auto seq_len = static_cast<size_t>(stream.seq_len());
  const size_t begin = static_cast<size_t>(row) * seq_len;
  stream.next(scratch, std::span(batch.document_start).subspan(begin, seq_len), nullptr);
  const auto offset = static_cast<std::ptrdiff_t>(begin);
  std::copy(scratch.begin(), scratch.end() - 1, batch.inputs.begin() + offset);
  std::copy(scratch.begin() + 1, scratch.end(), batch.targets.begin() + offset);
}

}  // namespace octavo

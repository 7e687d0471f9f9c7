#include "data/sample_batch.h"

#include <algorithm>

namespace octavo {

void resize(Batch& batch, int64_t rows, int64_t seq_len) {
  for (std::vector<int32_t>* array : {&batch.inputs, &batch.targets, &batch.document_start}) {
    array->resize(static_cast<size_t>(rows * seq_len));
  }
}

void read_sample(const SampleStream& stream, const Sample& sample, int64_t row, std::span<int32_t> scratch,
                 Batch& batch) {
  const int64_t begin = row * stream.seq_len();
  const auto starts =
      std::span(batch.document_start).subspan(static_cast<size_t>(begin), static_cast<size_t>(stream.seq_len()));
  stream.read(sample, scratch, starts);
  std::copy(scratch.begin(), scratch.end() - 1, batch.inputs.begin() + begin);
  std::copy(scratch.begin() + 1, scratch.end(), batch.targets.begin() + begin);
}

void pad_row(Batch& batch, int64_t row, int64_t seq_len) {
  const int64_t begin = row * seq_len;
  std::fill_n(batch.inputs.begin() + begin, seq_len, 0);
  std::fill_n(batch.targets.begin() + begin, seq_len, -1);
  std::fill_n(batch.document_start.begin() + begin, seq_len, 0);
}

}  // namespace octavo

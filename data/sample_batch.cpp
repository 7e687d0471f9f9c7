#include "data/sample_batch.h"

#include <algorithm>

#include "core/error.h"

namespace octavo {

void check_windows(const SampleStream& stream, std::span<const DatasetSource> sources) {
  for (size_t d = 0; d < sources.size(); ++d) {
    const int64_t tokens = stream.num_tokens(static_cast<int64_t>(d));
    CHECK_INPUT(sources[d].weight == 0 || tokens > stream.seq_len(),
                "{}: has {} tokens, expected at least data.seq_len + 1 = {}; use more text or a smaller data.seq_len",
                sources[d].paths.front(), tokens, stream.seq_len() + 1);
  }
}

void resize(Batch& batch, int64_t rows, int64_t share) {
  for (std::vector<int32_t>* array : {&batch.inputs, &batch.targets, &batch.document_start}) {
    array->resize(static_cast<size_t>(rows * share));
  }
}

void read_sample(const SampleStream& stream, const Sample& sample, int64_t row, const ContextRank& context,
                 SampleScratch& scratch, Batch& batch) {
  const auto& [tokens, document_start] = scratch;
  stream.read(sample, scratch.tokens, scratch.document_start);
  const int64_t length = stream.seq_len() / context.whole_chunks();
  int64_t next = row * context.share(stream.seq_len());
  for (int64_t i = 0; i < context.chunks(); ++i) {
    const int64_t begin = context.chunk(i) * length;
    std::copy_n(tokens.begin() + begin, length, batch.inputs.begin() + next);
    std::copy_n(tokens.begin() + begin + 1, length, batch.targets.begin() + next);
    std::copy_n(document_start.begin() + begin, length, batch.document_start.begin() + next);
    for (int64_t t = begin + 1; stream.document_mask() && t <= begin + length; ++t) {
      const bool begins = document_start[static_cast<size_t>(t)] == t;
      if (begins) batch.targets[static_cast<size_t>(next + t - begin - 1)] = -1;
    }
    next += length;
  }
}

void append_share(const Batch& whole, const ContextRank& context, int64_t seq_len, Batch& batch) {
  const int64_t share = context.share(seq_len);
  for (int64_t row = 0; row < std::ssize(whole.inputs) / seq_len; ++row) {
    for (int64_t t = 0; t < share; ++t) {
      const auto token = static_cast<size_t>(row * seq_len + context.position(t, seq_len));
      batch.inputs.push_back(whole.inputs[token]);
      batch.targets.push_back(whole.targets[token]);
      batch.document_start.push_back(whole.document_start[token]);
    }
  }
}

void pad_row(Batch& batch, int64_t row, int64_t share) {
  const int64_t begin = row * share;
  std::fill_n(batch.inputs.begin() + begin, share, 0);
  std::fill_n(batch.targets.begin() + begin, share, -1);
  std::fill_n(batch.document_start.begin() + begin, share, 0);
}

}  // namespace octavo

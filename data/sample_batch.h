// Shared by Loader and ValidationSet: one sample becomes one row of a batch.
#pragma once

#include <cstdint>

#include "data/loader.h"
#include "data/sample_stream.h"

namespace octavo {

// Room for `rows` samples, of each `share` tokens.
void resize(Batch& batch, int64_t rows, int64_t share);

// Reads `sample` into row `row` of the batch, of which the rank's share. With a document mask a target that is the
// first token of a document is -1, as nothing that its position sees belongs to that document.
void read_sample(const SampleStream& stream, const Sample& sample, int64_t row, const ContextRank& context,
                 SampleScratch& scratch, Batch& batch);

// Appends the share that a rank has of each row of `whole`, whose rows are of seq_len tokens.
void append_share(const Batch& whole, const ContextRank& context, int64_t seq_len, Batch& batch);

// A row that is no sample: inputs 0 and targets -1, which the loss ignores.
void pad_row(Batch& batch, int64_t row, int64_t share);

}  // namespace octavo

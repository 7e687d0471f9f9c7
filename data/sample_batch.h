// Shared by Loader and ValidationSet: one sample becomes one row of a batch.
#pragma once

#include <cstdint>

#include "data/loader.h"
#include "data/sample_stream.h"

namespace octavo {

// Room for `rows` samples of seq_len.
void resize(Batch& batch, int64_t rows, int64_t seq_len);

// Reads `sample` into row `row` of the batch. With a document mask a target that is the first token of a document is
// -1, as nothing that its position sees belongs to that document.
void read_sample(const SampleStream& stream, const Sample& sample, int64_t row, SampleScratch& scratch, Batch& batch);

// A row that is no sample: inputs 0 and targets -1, which the loss ignores.
void pad_row(Batch& batch, int64_t row, int64_t seq_len);

}  // namespace octavo

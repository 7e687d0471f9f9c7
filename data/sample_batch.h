// Parts that Loader and ValidationSet share: the check of their datasets, and the conversion of one sample into one row
// of a batch.
#pragma once

#include <cstdint>
#include <span>

#include "data/loader.h"
#include "data/sample_stream.h"

namespace octavo {

// Throws an InputError that names the first file of a dataset of `sources`, those of `stream`, that has fewer than
// seq_len + 1 tokens. A window would repeat its text. Datasets with weight 0 do not count, because they are never read.
void check_windows(const SampleStream& stream, std::span<const DatasetSource> sources);

// Resizes the batch to `rows` samples with `share` tokens each.
void resize(Batch& batch, int64_t rows, int64_t share);

// Reads the rank's share of `sample` into row `row` of the batch. With a document mask the target is -1 where it is the
// first token of a document, because no earlier token belongs to that document.
void read_sample(const SampleStream& stream, const Sample& sample, int64_t row, const ContextRank& context,
                 SampleScratch& scratch, Batch& batch);

// Appends the rank's share of each row of `whole`, whose rows have seq_len tokens.
void append_share(const Batch& whole, const ContextRank& context, int64_t seq_len, Batch& batch);

// Makes a row of padding: inputs 0 and targets -1, which the loss ignores.
void pad_row(Batch& batch, int64_t row, int64_t share);

}  // namespace octavo

// Shared by Loader and ValidationSet: one sample becomes one row of a batch.
#pragma once

#include <cstdint>

#include "data/loader.h"
#include "data/sample_stream.h"

namespace octavo {

// Reads the next sample of `stream` into row `row` of the batch. With `document_mask` a target that is the first token
// of a document is -1, as nothing that its position sees belongs to that document.
void read_sample(SampleStream& stream, bool document_mask, SampleScratch& scratch, int64_t row, Batch& batch);

}  // namespace octavo

// Shared by Loader and ValidationSet: one sample becomes one row of a batch.
#pragma once

#include <cstdint>
#include <span>

#include "data/loader.h"
#include "data/sample_stream.h"

namespace octavo {

// Reads the next sample of `stream` into row `row` of the batch. `scratch` is [seq_len + 1].
void read_sample(SampleStream& stream, std::span<int32_t> scratch, int64_t row, Batch& batch);

}  // namespace octavo

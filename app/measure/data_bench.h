// How fast the loader alone makes batches of a config's data, without a model: `octavo bench CONFIG --data`.
#pragma once

#include <nlohmann/json.hpp>

#include "app/config/config.h"

namespace octavo {

// Makes `warmup` and then `steps` batches of data-parallel rank 0 of `num_ranks`. Keys: tokens_per_s, reader_threads,
// seq_len, batch (sequences of the rank), first_batch_ms (from opening the files on), batch_ms (the median).
nlohmann::ordered_json bench_data(const Config& config, int64_t num_ranks, int64_t warmup, int64_t steps);

}  // namespace octavo

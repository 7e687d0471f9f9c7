#include "app/measure/data_bench.h"

#include <chrono>
#include <vector>

#include "core/median.h"
#include "data/loader.h"

namespace octavo {

nlohmann::ordered_json bench_data(const Config& config, int64_t num_ranks, int64_t warmup, int64_t steps) {
  using Clock = std::chrono::steady_clock;
  const auto milliseconds_since = [](Clock::time_point begin) {
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  };
  const auto opening = Clock::now();
  Loader loader(config.data, {.global_batch_size = config.training.global_batch_size,
                              .num_ranks = num_ranks,
                              .vocab_size = config.model.vocab_size});
  loader.next();
  const double first_batch_ms = milliseconds_since(opening);
  for (int64_t i = 0; i < warmup; ++i) loader.next();
  std::vector<double> times;
  const auto begin = Clock::now();
  for (int64_t i = 0; i < steps; ++i) {
    const auto before = Clock::now();
    loader.next();
    times.push_back(milliseconds_since(before));
  }
  const double seconds = milliseconds_since(begin) / 1e3;
  const int64_t batch = config.training.global_batch_size / num_ranks;
  return {{"tokens_per_s", static_cast<double>(steps * batch * config.data.seq_len) / seconds},
          {"reader_threads", config.data.reader_threads},
          {"seq_len", config.data.seq_len},
          {"batch", batch},
          {"first_batch_ms", first_batch_ms},
          {"batch_ms", median(times)}};
}

}  // namespace octavo

// Names the rank that the others wait for (app/guard/slow_rank.h), and whether it is slow in computing or in reading
// data. Every logging.slow_rank_every steps all ranks time their collectives; on a GPU such a step records two events
// per collective, which nothing waits for. A run of one rank does nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "app/config/config.h"
#include "app/guard/slow_rank.h"
#include "app/log/step_log.h"
#include "app/process/runtime.h"
#include "app/run/training_state.h"
#include "core/profiler.h"

namespace octavo {

class SlowRankWatch {
 public:
  // Borrows `runtime`.
  SlowRankWatch(const LoggingConfig& config, Runtime& runtime);
  SlowRankWatch(const SlowRankWatch&) = delete;  // Streams point to its profilers.
  SlowRankWatch& operator=(const SlowRankWatch&) = delete;

  // Enclose what queues a step. The first step of a run is not measured, because it differs from the others.
  void begin_step(TrainingState& state, int64_t step, bool first);
  void end_step();
  // Takes each step once its result is on the host. A collective if the step was measured.
  void finish_step(const FinishedStep& step);

 private:
  Runtime& runtime_;
  int64_t every_;                    // 0 if no step is measured.
  std::vector<Stream*> streams_;     // Streams that are being recorded.
  std::vector<Profiler> profilers_;  // One per stream.
  Event origin_{Device::kCpu};
  std::optional<int64_t> measured_;  // The step whose times are recorded.
  SlowRanks slow_ranks_;             // Used on rank 0.
};

}  // namespace octavo

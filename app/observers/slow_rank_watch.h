// Names the rank that the others wait for (app/observers/slow_rank.h), and whether it is slow in computing or in
// reading data. Every logging.slow_rank_every steps all ranks time their collectives; on a GPU such a step records two
// events per collective, which nothing waits for. A run of one rank does nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "app/observers/slow_rank.h"
#include "app/observers/step_observer.h"
#include "core/profiler.h"

namespace octavo {

class SlowRankWatch : public StepObserver {
 public:
  explicit SlowRankWatch(const ObserverContext& context);
  SlowRankWatch(const SlowRankWatch&) = delete;  // Streams point to its profilers.
  SlowRankWatch& operator=(const SlowRankWatch&) = delete;

  void before_step(const TrainingStep& step) override;
  void after_step(int64_t step) override;
  void on_result(Step& step) override;
  void on_new_state() override { is_first_ = true; }

 private:
  const ObserverContext context_;
  int64_t every_;                    // 0 if no step is measured.
  std::vector<Stream*> streams_;     // Streams that are being recorded.
  std::vector<Profiler> profilers_;  // One per stream.
  Event origin_{Device::kCpu};
  bool is_first_ = true;             // The first step is not measured, because it differs from the others.
  std::optional<int64_t> measured_;  // The step whose times are recorded.
  SlowRanks slow_ranks_;             // Used on rank 0.
};

}  // namespace octavo

#include "app/plan/step_timeline.h"

#include <algorithm>

namespace octavo {

StepTimeline step_timeline(const PredictedRun& run, const MachineRates& machine, const Cluster& cluster) {
  const StepClock clock(record_step(run, static_cast<int>(machine.multiprocessors), cluster.gpus_per_node), machine,
                        cluster);
  return {.ranges = clock.timeline(run.mesh),
          .left_out = std::max<int64_t>(micro_batches_of(run) - kFirstMiddleLast, 0)};
}

}  // namespace octavo

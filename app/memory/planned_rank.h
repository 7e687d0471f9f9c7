// Rank 0 of a mesh that is not there: a planned stream and planned communicators, for what a run would make and do on
// it.
#pragma once

#include <memory>

#include "app/run/training_state.h"
#include "parallel/ranks/watchdog.h"

namespace octavo {

class PlannedRank {
 public:
  // `stream`, planned or a CPU's, is this rank's; `watchdog` must outlive it. `all_to_all_load`: DataParallelGroups.
  PlannedRank(const Config& config, const MeshShape& mesh, int64_t all_to_all_load, Stream stream, Watchdog& watchdog);
  PlannedRank(const PlannedRank&) = delete;
  PlannedRank& operator=(const PlannedRank&) = delete;

  TrainingRank rank();

 private:
  int64_t all_to_all_load_;
  Stream stream_;
  std::unique_ptr<Communicator> shard_, replicate_, tensor_, context_, micro_batch_, tokens_, world_;
};

}  // namespace octavo

// The batches of a run, in order, with what belongs to each; some of them can be had again.
#pragma once

#include <deque>
#include <nlohmann/json.hpp>

#include "app/log/step_results.h"
#include "data/loader.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

struct FedBatch {
  const Batch* batch = nullptr;  // valid until the next one is asked for
  SampleRange samples;           // of all ranks, those passed over included
  nlohmann::json loader_state;   // after it
  double data_ms = 0;            // that the host waited for it
  double data_lost_ms = 0;       // what of that the device had nothing to do
};

// Owns the loader. Used by one thread.
class BatchFeed {
 public:
  explicit BatchFeed(std::unique_ptr<Loader> loader);

  const Loader& loader() const { return *loader_; }

  // Where all ranks learn of what one of them has met since the step before, a bad token among it. A collective.
  const FedBatch& next(ProcessGroup& group, const StepResults& results);

  // Keeps copies of the batches from the next one on; then replay() goes back to the first of them, as often as asked.
  void record();
  void replay() { next_recorded_ = 0; }
  // No replay will be asked for any more.
  void forget();

 private:
  struct Recorded {
    Batch batch;
    FedBatch fed;
  };

  std::unique_ptr<Loader> loader_;
  FedBatch current_;
  int64_t next_sample_ = 0;
  bool recording_ = false;
  std::deque<Recorded> recorded_;  // at addresses that stay
  size_t next_recorded_ = 0;
};

}  // namespace octavo

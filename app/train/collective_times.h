// How long this rank was in the collectives of a step, by what they move. A collective's time is from when its stream
// comes to it to its end, so that it includes waiting for ranks that come later: what the least of all ranks is in it,
// the ranks' links take. On a GPU the measured steps record two events a collective, which nothing waits for.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "app/run/training_state.h"
#include "core/profiler.h"

namespace octavo {

class CollectiveTimes {
 public:
  CollectiveTimes() = default;
  CollectiveTimes(const CollectiveTimes&) = delete;  // streams point to its profilers
  CollectiveTimes& operator=(const CollectiveTimes&) = delete;

  // What is queued on the streams of `state` is recorded, from here to stop(); not where something else records it.
  bool start(TrainingState& state, const TrainingRank& rank);
  void stop();

  // Of what is recorded, once all of it is reached: the milliseconds, by "all_gather of weights (shard axis)", of the
  // communicators that `counts` wants, which are asked for by their names. Forgets them.
  template <typename Counts>
  std::map<std::string, double> take(const Counts& counts) {
    std::map<std::string, double> times;
    for (const Track& track : tracks_) {
      for (const Profiler::Span& span : track.profiler.spans(origin_)) {
        if (counts(span.op.axis)) times[describe(track, span)] += span.end_ms - span.begin_ms;
      }
    }
    tracks_.clear();
    return times;
  }

 private:
  struct Track {
    TrainingStream stream;
    Profiler profiler;
  };
  static std::string describe(const Track& track, const Profiler::Span& span);

  std::vector<Track> tracks_;
  Event origin_{Device::kCpu};
  bool recording_ = false;
};

}  // namespace octavo

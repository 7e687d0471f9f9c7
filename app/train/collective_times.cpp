#include "app/train/collective_times.h"

#include <cstring>

#include "parallel/ranks/watchdog.h"

namespace octavo {

bool CollectiveTimes::start(TrainingState& state, const TrainingRank& rank) {
  if (rank.stream.profiler() != nullptr) return false;
  tracks_.clear();
  const std::vector<TrainingStream> streams = training_streams(state, rank);
  tracks_.reserve(streams.size());
  for (const TrainingStream& stream : streams) {
    tracks_.push_back({stream, Profiler(stream.stream->device(), Profiler::Detail::kCollectives)});
  }
  origin_ = Event(rank.stream.device(), true);
  origin_.record(rank.stream);
  for (Track& track : tracks_) track.stream.stream->set_profiler(&track.profiler);
  recording_ = true;
  return true;
}

void CollectiveTimes::stop() {
  if (!recording_) return;
  for (Track& track : tracks_) track.stream.stream->set_profiler(nullptr);
  recording_ = false;
}

std::string CollectiveTimes::describe(const Track& track, const Profiler::Span& span) {
  const bool gathers = std::strcmp(span.op.name, "all_gather") == 0;
  return Collective{span.op.name, gathers ? track.stream.gathered : track.stream.reduced, span.op.axis}.describe();
}

}  // namespace octavo

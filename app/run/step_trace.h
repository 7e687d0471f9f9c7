// A step of every rank as a trace that Chrome (chrome://tracing) and Perfetto (ui.perfetto.dev) show: a rank is a
// process, its host thread and each of its streams is a thread, every op and every range of ops (core/profiler.h) a
// span, ranges around the ops in them. Times are in microseconds since the beginning of the step.
//
// On a GPU spans of a stream are from event to event on that stream, and those of the host when it queued them; a
// collective begins when its stream comes to it, so it includes waiting for other ranks. On the CPU ops run where they
// are called, and the host's thread has the rest.
//
// Clocks: a rank's streams share one event, recorded on its idle device between two readings of the host's clock, whose
// middle it is taken for (some ten microseconds). Ranks of rank 0's machine have its clock; those of another one are
// set by the times at which ranks leave a barrier, the median of several (the latency of the network).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/run/training_state.h"
#include "core/files/output_file.h"
#include "core/profiler.h"

namespace octavo {

inline constexpr OutputKind kStepTraceFile{"a trace of an Octavo step", R"("otherData":{"octavo":)"};

class StepTrace {
 public:
  // Waits for what is queued; from here on everything on the streams of `state` is recorded, until write() or the end
  // of the object. A collective. `state` and `rank` must outlive it.
  StepTrace(TrainingState& state, ProcessGroup& group);
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  // Waits for the step, and writes the file from rank 0 with what all ranks recorded. `about`: what the trace is of, as
  // its metadata. A collective; throws InputError where the file cannot be written.
  void write(const std::string& path, const std::string& about);

 private:
  struct Track {
    const char* name;
    Stream* stream;
    Profiler profiler;
  };
  void stop();
  std::string events(int rank) const;

  ProcessGroup& group_;
  std::vector<Track> tracks_;  // the first is the compute stream
  Event origin_;
  double origin_ms_ = 0;               // of the host's clock when it was reached
  double begin_ms_ = 0;                // of the host's clock when rank 0's was
  std::optional<ProfilerRange> step_;  // around everything, while it records
};

}  // namespace octavo

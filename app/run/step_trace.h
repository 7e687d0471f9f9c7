// Records a step of all ranks as a trace for Perfetto (ui.perfetto.dev) and Chrome (chrome://tracing). Each rank is a
// process in the trace, with one thread for its host thread and one per stream. Each op and each range of ops
// (core/profiler.h) is a span; the span of a range encloses its ops. Times are in microseconds from the beginning of
// the step.
//
// On a GPU, the spans of a stream lie between events on that stream, and the spans of the host thread show when the
// host queued the work. A collective begins when its stream reaches it, so its span includes waiting for other ranks.
// On the CPU, ops run on the thread that calls them.
//
// Clocks: the streams of a rank share one event, which is recorded on the idle device between two readings of the
// host's clock. The time of the event is taken to be the middle of these readings, with an error of some ten
// microseconds. Ranks on rank 0's machine share its clock. The offset of other machines is measured as the difference
// of the times at which ranks leave a barrier (the median of several), with an error of about the network's latency.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/process/runtime.h"
#include "app/run/training_state.h"
#include "core/files/output_file.h"
#include "core/profiler.h"

namespace octavo {

inline constexpr OutputKind kStepTraceFile{"a trace of an Octavo step", R"("otherData":{"octavo":)"};

class StepTrace {
 public:
  // Waits for queued work, then records all work on the streams of `state` until write() or destruction. A collective.
  // Requires: `state` and `group` outlive the object.
  StepTrace(TrainingState& state, ProcessGroup& group);
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  // Waits for the step, then writes the records of all ranks to a file on rank 0. `about` describes the trace in its
  // metadata. A collective. Throws an InputError if the file cannot be written.
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
  std::string of_stage_;       // Name of the rank's pipeline stage in the trace. Empty with a single stage.
  std::vector<Track> tracks_;  // Streams, beginning with the compute stream.
  Event origin_;
  double origin_ms_ = 0;               // Time of origin_ on this rank's host clock.
  double begin_ms_ = 0;                // Time of rank 0's origin_ on this rank's host clock.
  std::optional<ProfilerRange> step_;  // Range around the whole step while it is recorded.
};

}  // namespace octavo

#include "app/observers/trace_watch.h"

#include <string>
#include <utility>

#include "app/process/events.h"
#include "core/error.h"

namespace octavo {

void TraceWatch::before_batch(int64_t step) {
  if (wants_result(step)) trace_ = std::make_unique<StepTrace>(context_.state, context_.runtime.group());
}

// A run is worth more than its trace.
void TraceWatch::while_idle(int64_t step) {
  const std::unique_ptr<StepTrace> trace = std::move(trace_);
  if (!trace) return;
  Runtime& runtime = context_.runtime;
  const std::string& dir = context_.config.logging.dir;
  const std::string path = fmt::format("{}/trace_step_{:08}.json", dir, step);
  try {
    trace->write(path, fmt::format("step {} of {}, {}", step, dir, runtime.describe()));
    if (runtime.group().is_root())
      log_event(EventKind::kNote, step, "a trace of step {} is in {}, for https://ui.perfetto.dev", step, path);
  } catch (const std::exception& error) {
    if (!runtime.group().shares(error)) throw;
    if (runtime.group().is_root()) log_event(EventKind::kWarning, step, "{}; step {} has no trace", error.what(), step);
  }
}

}  // namespace octavo

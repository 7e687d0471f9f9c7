// Observer that writes a trace of step logging.trace.step (app/run/step_trace.h) to the run's folder.
#include <string>
#include <utility>

#include "app/observers/step_observer.h"
#include "app/process/events.h"
#include "app/run/step_trace.h"
#include "core/error.h"

namespace octavo {

namespace {

class TraceWatch : public StepObserver {
 public:
  explicit TraceWatch(const ObserverContext& context) : context_(context) {}

  void before_batch(int64_t step) override {
    if (wants_result(step)) trace_ = std::make_unique<StepTrace>(context_.state, context_.runtime.group());
  }

  bool wants_result(int64_t step) const override { return step == context_.config.trace.step; }

  // Writes the trace. A failure is only a warning, so that it does not end the run.
  void while_idle(int64_t step) override {
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
      if (runtime.group().is_root())
        log_event(EventKind::kWarning, step, "{}; step {} has no trace", error.what(), step);
    }
  }

 private:
  const ObserverContext context_;
  std::unique_ptr<StepTrace> trace_;
};

}  // namespace

std::unique_ptr<StepObserver> make_trace_watch(const ObserverContext& context) {
  return std::make_unique<TraceWatch>(context);
}

}  // namespace octavo

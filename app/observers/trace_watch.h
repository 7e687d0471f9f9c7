// Writes a trace of step trace.step (app/run/step_trace.h) into the run's folder.
#pragma once

#include <memory>

#include "app/observers/step_observer.h"
#include "app/run/step_trace.h"

namespace octavo {

class TraceWatch : public StepObserver {
 public:
  explicit TraceWatch(const ObserverContext& context) : context_(context) {}

  void before_batch(int64_t step) override;
  bool wants_result(int64_t step) const override { return step == context_.config.trace.step; }
  void while_idle(int64_t step) override;

 private:
  const ObserverContext context_;
  std::unique_ptr<StepTrace> trace_;
};

}  // namespace octavo

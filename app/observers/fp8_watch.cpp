#include "app/observers/fp8_watch.h"

#include <string>

#include "app/process/events.h"

namespace octavo {

Fp8Watch::Fp8Watch(const ObserverContext& context) : context_(context) {
  const Config& config = context.config;
  if (!is_fp8(config.precision.linear) && config.logging.fp8_stats_every > 0 && context.runtime.group().is_root()) {
    log_warning("logging.fp8_stats_every is {}, but no linear is in FP8, so there is nothing to measure",
                config.logging.fp8_stats_every);
  }
  on_new_state();
}

void Fp8Watch::on_new_state() {
  reporter_.reset();
  if (Fp8StatsTable* table = context_.state.model.fp8_stats()) {
    reporter_.emplace(context_.config, *table, context_.runtime.stream().device());
  }
}

void Fp8Watch::before_step(const TrainingStep& step) {
  if (due(step.number)) reporter_->begin(context_.runtime.stream());
}

// This copy to the host comes before that of the step's results, so it is done when they are there.
void Fp8Watch::after_step(int64_t step) {
  if (due(step)) reporter_->end(context_.runtime.mesh().world(), context_.runtime.stream());
}

void Fp8Watch::on_result(Step& step) {
  if (!due(step.number)) return;
  step.row.fp8 = reporter_->pop();
  const std::optional<std::string> warning = fp8_warning(step.number, step.row.fp8);
  if (warning && context_.runtime.group().is_root()) log_event(EventKind::kWarning, step.number, *warning);
}

}  // namespace octavo

// Reports the statistics of a step's FP8 casts (app/run/fp8_report.h) every logging.fp8_stats_every steps.
#pragma once

#include <optional>

#include "app/observers/step_observer.h"
#include "app/run/fp8_report.h"

namespace octavo {

class Fp8Watch : public StepObserver {
 public:
  explicit Fp8Watch(const ObserverContext& context);

  void before_step(const TrainingStep& step) override;
  void after_step(int64_t step) override;
  void on_result(Step& step) override;
  void on_new_state() override;

 private:
  bool due(int64_t step) const { return reporter_ && reporter_->due(step); }

  const ObserverContext context_;
  std::optional<Fp8Reporter> reporter_;  // Empty if the model takes no statistics.
};

}  // namespace octavo

#include "app/log/step.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "app/process/events.h"
#include "core/format.h"

namespace octavo {

namespace {

std::string describe_bad_step(const Step& step) {
  const double loss = unsigned_nan(step.loss());
  const char* outcome = step.skipped ? "; the step is skipped" : "";
  const std::string samples = fmt::format("samples {} to {}{}", step.samples.begin, step.samples.end - 1, outcome);
  if (!std::isfinite(loss) || !std::isfinite(step.grad_norm)) {
    return fmt::format("step {}: the loss is {:.4g} and the gradient norm {:.4g}; {}", step.number, loss,
                       unsigned_nan(step.grad_norm), samples);
  }
  return fmt::format(
      "step {}: the loss of {:.4f} is a spike, {:.1f} standard deviations above the mean of the steps before; {}",
      step.number, loss, step.judgement.loss_z.value_or(0), samples);
}

}  // namespace

int64_t Step::num_targets() const { return std::accumulate(targets.begin(), targets.end(), int64_t{0}); }

double Step::mean(double sum) const { return sum / static_cast<double>(std::max<int64_t>(num_targets(), 1)); }

double Step::loss() const { return mean(std::accumulate(loss_sums.begin(), loss_sums.end(), 0.0)); }

void log_step_warnings(const Step& step) {
  const Judgement& judgement = step.judgement;
  if (judgement.skipped || judgement.spike) {
    log_event(step.skipped ? EventKind::kSkip : EventKind::kWarning, step.number, describe_bad_step(step));
  }
  if (judgement.grad_norm_z) {
    log_event(EventKind::kWarning, step.number,
              "step {}: the gradient norm of {:.3f} is a spike, {:.1f} standard deviations above the mean of the steps "
              "before",
              step.number, step.grad_norm, *judgement.grad_norm_z);
  }
  if (judgement.warns_about_slowdown) {
    log_event(EventKind::kWarning, step.number,
              "step {}: the step took {:.0f} ms, {:.1f} times the mean of the steps before", step.number, step.step_ms,
              *judgement.slowdown);
  }
}

}  // namespace octavo

#include "app/train/step_log.h"

#include <algorithm>
#include <ctime>
#include <numeric>
#include <utility>

#include "core/log.h"
#include "core/output_file.h"
#include "model/schedule.h"

namespace octavo {

namespace {

template <typename T>
T sum_of(const std::vector<T>& values) {
  return std::accumulate(values.begin(), values.end(), T{});
}

std::string by_name(const NumbersByName& numbers) {
  std::string text;
  for (const auto& [name, value] : numbers) text += fmt::format("{}{} {:.4f}", text.empty() ? "" : ", ", name, value);
  return text;
}

}  // namespace

double FinishedStep::loss() const {
  return sum_of(result.loss_sums) / static_cast<double>(std::max<int64_t>(sum_of(data.targets), 1));
}

StepLog::StepLog(const Config& config, const Runtime& runtime, bool writes, std::optional<int64_t> resumes_after)
    : config_(config), runtime_(runtime) {
  if (writes) metrics_.emplace(config.logging.dir, config.logging.tensorboard, resumes_after);
}

void StepLog::count(double step_ms, double data_ms) {
  ++interval_.steps;
  interval_.milliseconds += step_ms;
  interval_.data_ms += data_ms;
}

void StepLog::report(const FinishedStep& step, StepContext context) {
  const Interval interval = std::exchange(interval_, {});
  if (!metrics_) return;
  const double seconds = interval.milliseconds / 1e3;
  const auto steps = static_cast<double>(interval.steps);
  const auto tokens = static_cast<double>(config_.training.global_batch_size * config_.data.seq_len);
  StepMetrics m;
  m.step = step.step();
  m.total_steps = config_.training.steps;
  m.loss = step.loss();
  m.grad_norm = step.result.grad_norm;
  m.lr = learning_rate(config_.optimizer, m.step, m.total_steps);
  m.tokens = context.tokens;
  m.wps = steps * tokens / seconds / runtime_.group().size();
  const double flops = m.wps * config_.model.flops_per_token(config_.data.seq_len);
  if (runtime_.stream().is_cuda()) m.mfu = flops / kPeakFlops;
  m.tflops = flops / 1e12;
  m.step_ms = 1e3 * seconds / steps;
  m.data_ms = interval.data_ms / steps;
  m.memory_gib = runtime_.memory_gib();
  m.goodput = context.goodput;
  m.precision_gap = context.precision_gap;
  m.skipped_steps = context.skipped_steps;
  m.loss_by_dataset = std::move(context.loss_by_dataset);
  m.epochs = step.data.epochs;
  m.validation_loss = context.validation_loss;
  m.validation_loss_by_dataset = std::move(context.validation_loss_by_dataset);
  m.fp8 = std::move(context.fp8);
  log_line(LogLevel::kInfo, console_line(m, static_cast<double>(m.total_steps - m.step) * seconds / steps));
  if (!m.validation_loss_by_dataset.empty()) log_info("validation_loss of {}", by_name(m.validation_loss_by_dataset));
  queue_.post([this, m] { write(m); });
  if (!config_.logging.prometheus.empty()) {
    post([this, m] {
      OutputFile file(config_.logging.prometheus);
      file.write(prometheus_text(m, config_.logging.dir, std::time(nullptr)));
      file.finish();
      file.rename();
    });
  }
  if (const std::optional<std::string> warning = fp8_warning(m.step, m.fp8)) log_line(LogLevel::kWarning, *warning);
}

// A run is worth more than its log: it goes on, and says so once.
void StepLog::write(const StepMetrics& metrics) {
  metrics_->write(metrics);
  const bool fails = !metrics_->failure().empty();
  if (fails && !failing_) log_warning("{}; its lines are kept until it can be", metrics_->failure());
  if (!fails && failing_) log_info("the metrics are written again, with all lines since then");
  failing_ = fails;
}

void StepLog::post(std::function<void()> work) {
  queue_.post([this, work = std::move(work)] {
    try {
      work();
    } catch (const std::exception& error) {
      if (!std::exchange(warned_, true)) log_warning("{}", error.what());
    }
  });
}

void StepLog::end() {
  flush();
  if (!metrics_ || metrics_->failure().empty()) return;
  log_warning("{}; {} of its lines are lost", metrics_->failure(), metrics_->kept());
}

}  // namespace octavo

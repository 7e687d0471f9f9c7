#include "app/log/step_log.h"

#include <algorithm>
#include <ctime>
#include <numeric>
#include <utility>

#include "core/files/output_file.h"
#include "core/format.h"
#include "core/log.h"

namespace octavo {

namespace {

template <typename T>
T sum_of(const std::vector<T>& values) {
  return std::accumulate(values.begin(), values.end(), T{});
}

double num_targets(const StepData& data) { return static_cast<double>(std::max<int64_t>(sum_of(data.targets), 1)); }

std::string by_name(const NumbersByName& numbers) {
  std::string text;
  for (const auto& [name, value] : numbers)
    text += fmt::format("{}{} {:.4f}", text.empty() ? "" : ", ", name, unsigned_nan(value));
  return text;
}

}  // namespace

std::string describe_steps(int64_t first, int64_t last) {
  return first == last ? fmt::format("step {}", first) : fmt::format("steps {} to {}", first, last);
}

double FinishedStep::loss() const { return sum_of(result.loss_sums) / num_targets(data); }

std::optional<double> FinishedStep::z_loss() const {
  return result.z_loss_sum ? std::optional(*result.z_loss_sum / num_targets(data)) : std::nullopt;
}

StepLog::StepLog(const Config& config, const Runtime& runtime, bool writes, std::optional<int64_t> resumes_after,
                 Console* console)
    : config_(config),
      batches_(config.training.batch_schedule()),
      runtime_(runtime),
      console_(writes ? console : nullptr) {
  if (runtime.stream().is_cuda()) gpu_bytes_ = gpu_info(runtime.gpu()).total_bytes;
  if (!writes) return;
  metrics_.emplace(config.logging.dir, config.logging.tensorboard, resumes_after);
  if (!config.logging.prometheus.empty()) check_output(config.logging.prometheus, kPrometheusFile);
  const int64_t step = resumes_after.value_or(0);
  metrics_->write_text("config", step, "```yaml\n" + to_yaml(config) + "```\n");
  metrics_->write_text("events/start", step, fmt::format("behind step {}, on {}", step, runtime.describe()));
}

StepLog::~StepLog() {
  if (console_ != nullptr) console_->show_progress("");
}

void StepLog::count(const FinishedStep& step, int64_t tokens, const StepMarks& marks) {
  const int64_t samples = batches_.batch_size(step.step());
  ++interval_.steps;
  interval_.samples += samples;
  interval_.milliseconds += step.result.step_ms;
  interval_.data_ms += step.data.data_ms;
  if (marks.slowdown) interval_.slowdown = std::max(*marks.slowdown, interval_.slowdown.value_or(0));
  loss_.add(step.loss());
  token_s_.add(step.result.step_ms / 1e3 / static_cast<double>(samples * config_.data.seq_len));
  if (shows_progress()) show_progress(step, tokens);
}

// So seldom that it costs nothing, so often that it looks alive.
void StepLog::show_progress(const FinishedStep& step, int64_t tokens) {
  constexpr std::chrono::milliseconds kPause{250};
  ProgressNumbers& n = progress_;
  n.step = step.step();
  n.total_steps = config_.total_steps();
  n.tokens = tokens;
  n.epoch = 0;
  for (const auto& [name, epochs] : step.data.epochs) n.epoch = std::max(n.epoch, epochs);
  n.loss = loss_.value();
  n.wps = wps(token_s_.value());
  n.mfu = mfu(n.wps);
  n.eta_s = tokens_left(n.step) * token_s_.value();
  const auto now = std::chrono::steady_clock::now();
  if (shown_ && now - *shown_ < kPause) return;
  shown_ = now;
  n.memory_gib = runtime_.memory_gib();
  if (gpu_bytes_ > 0) n.memory_share = n.memory_gib / gib(gpu_bytes_);
  console_->show_progress(progress_line(n, console_->columns(), console_->has_colors()));
}

double StepLog::wps(double token_s) const { return 1 / token_s / runtime_.group().size(); }

double StepLog::tokens_left(int64_t step) const {
  const int64_t samples = batches_.samples(config_.training.steps) - batches_.samples(step);
  return static_cast<double>(samples * config_.data.seq_len + config_.stage.later_tokens);
}

double StepLog::flops(double wps) const { return wps * config_.model.flops_per_token(config_.data.seq_len); }

std::optional<double> StepLog::mfu(double wps) const {
  if (!runtime_.stream().is_cuda()) return std::nullopt;
  return octavo::mfu(flops(wps));
}

void StepLog::report(const FinishedStep& step, StepContext context) {
  const Interval interval = std::exchange(interval_, {});
  if (!metrics_) return;
  const double seconds = interval.milliseconds / 1e3;
  const auto steps = static_cast<double>(interval.steps);
  const auto tokens = static_cast<double>(interval.samples * config_.data.seq_len);
  StepMetrics m;
  m.step = step.step();
  m.total_steps = config_.total_steps();
  m.stage = config_.stage.number;
  m.loss = step.loss();
  m.z_loss = step.z_loss();
  m.grad_norm = step.result.grad_norm;
  m.lr = config_.learning_rate(m.step);
  m.tokens = context.tokens;
  m.wps = wps(seconds / tokens);
  m.mfu = mfu(m.wps);
  m.tflops = flops(m.wps) / 1e12;
  m.step_ms = 1e3 * seconds / steps;
  m.data_ms = interval.data_ms / steps;
  m.memory_gib = runtime_.memory_gib();
  m.goodput = context.goodput;
  m.precision_gap = context.precision_gap;
  m.skipped_steps = context.skipped_steps;
  m.marks = context.marks;
  m.marks.slowdown = interval.slowdown;
  m.loss_by_dataset = std::move(context.loss_by_dataset);
  m.epochs = step.data.epochs;
  m.validation_loss = context.validation_loss;
  m.validation_loss_by_dataset = std::move(context.validation_loss_by_dataset);
  m.fp8 = std::move(context.fp8);
  const bool on_terminal = shows_progress();
  log_line(on_terminal ? LogLevel::kDetail : LogLevel::kInfo, console_line(m, tokens_left(m.step) * seconds / tokens));
  if (on_terminal && m.validation_loss) {
    console_->print(fmt::format("step {}/{}  loss {:.4f}  validation_loss {:.4f}", m.step, m.total_steps,
                                unsigned_nan(m.loss), unsigned_nan(*m.validation_loss)));
  }
  if (!m.validation_loss_by_dataset.empty()) log_info("validation_loss of {}", by_name(m.validation_loss_by_dataset));
  queue_.post([this, m] { write(m); });
  if (!config_.logging.prometheus.empty()) {
    post([this, m] {
      write_output_file(config_.logging.prometheus, kPrometheusFile,
                        prometheus_text(m, config_.logging.dir, std::time(nullptr)));
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
  if (shows_progress() && shown_) {
    console_->show_progress("");
    console_->print(progress_line(progress_, console_->columns(), console_->has_colors()));
  }
  if (!metrics_) return;
  metrics_->write_kept();
  if (metrics_->failure().empty()) return;
  log_warning("{}; {} of its lines are lost", metrics_->failure(), metrics_->kept());
}

}  // namespace octavo

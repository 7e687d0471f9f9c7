#include "app/log/step_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ranges>
#include <utility>

#include "core/format.h"
#include "core/log.h"

namespace octavo {

namespace {

constexpr int kMaxColumns = 100;

// A field of the progress line.
struct Field {
  std::string text;
  int worth;  // Importance. The least important fields are omitted first.
};

// Returns the fields in the order of the line.
std::vector<Field> fields_of(const MetricRow& row, double eta_s, double gpu_gib) {
  const double share = static_cast<double>(row.step) / static_cast<double>(std::max<int64_t>(row.total_steps, 1));
  const double wps = row.at("wps");
  double most_epochs = 0;  // Number of epochs over the dataset with the most epochs.
  for (const auto& [name, epochs] : row.by_dataset("epochs")) most_epochs = std::max(most_epochs, epochs);
  const double memory_gib = row.at("memory_gib");
  std::vector<Field> fields = {
      {fmt::format("{:.1f}%", 100 * share), 9},
      {fmt::format("step {}/{}", with_thousands_separators(row.step), with_thousands_separators(row.total_steps)), 7},
      {fmt::format("{} tokens", with_unit(std::llround(row.at("tokens")))), 3},
      {fmt::format("epoch {:.2f}", most_epochs), 1},
      {fmt::format("loss {:.4f}", row.at("loss")), 8},
      {fmt::format("{} wps", std::isfinite(wps) ? with_thousands_separators(std::llround(wps)) : "-"), 5}};
  if (const auto mfu = row.get("mfu")) fields.push_back({fmt::format("mfu {:.1f}%", 100 * *mfu), 4});
  fields.push_back({fmt::format("{:.1f} GiB", memory_gib), 2});
  if (gpu_gib > 0) fields.back().text += fmt::format(" {:.0f}%", 100 * memory_gib / gpu_gib);
  fields.push_back({fmt::format("eta {}", format_duration(eta_s)), 6});
  return fields;
}

std::string joined(const std::vector<Field>& fields) {
  return fmt::format("{}", fmt::join(fields | std::views::transform(&Field::text), "  "));
}

// Returns the progress line that a terminal shows below the log while a run is in progress. It describes the run's
// newest step:
//
//   42.1%  step 4,210/10,000  34.5M tokens  epoch 0.31  loss 2.8123  16,432 wps  mfu 46.2%  71.3 GiB 51%  eta 1h 12m
//
// The line has at most 100 characters and fewer than `columns`. If the line is too long, the least important fields are
// omitted. `colors` adds color codes, which do not count as characters. `gpu_gib` is the total memory of the GPU, or 0
// on the CPU.
std::string progress_line(const MetricRow& row, double eta_s, double gpu_gib, int columns, bool colors) {
  // One column stays free: after a line of the terminal's full width, the position of the next character depends on the
  // terminal.
  const auto limit = static_cast<size_t>(std::clamp(columns - 1, 1, kMaxColumns));
  std::vector<Field> fields = fields_of(row, eta_s, gpu_gib);
  while (fields.size() > 1 && joined(fields).size() > limit) {
    fields.erase(std::ranges::min_element(fields, {}, &Field::worth));
  }
  std::string& first = fields.front().text;
  first = first.substr(0, limit);
  if (colors) first = fmt::format("\x1b[1;32m{}\x1b[0m", first);
  return joined(fields);
}

// Returns the FLOPs per token of a step in the precision that it used. `row` has its attended_tokens.
ModelFlops flops_of_step(const Config& config, const MetricRow& row) {
  return model_flops(config.model, row.in_bfloat16 ? without_fp8(config.precision) : config.precision,
                     config.data.seq_len, row.at("attended_tokens"));
}

}  // namespace

void Smoothed::add(double value) {
  constexpr double kKept = 0.95;
  if (!std::isfinite(value)) return;
  sum_ = kKept * sum_ + (1 - kKept) * value;
  weight_ = kKept * weight_ + (1 - kKept);
}

std::string describe_steps(int64_t first, int64_t last) {
  return first == last ? fmt::format("step {}", first) : fmt::format("steps {} to {}", first, last);
}

StepLog::StepLog(const StageConfig& config, const Runtime& runtime, bool writes, std::optional<int64_t> resumes_after,
                 Console* console)
    : config_(config),
      batches_(config.training.batch_schedule()),
      runtime_(runtime),
      console_(writes ? console : nullptr) {
  if (runtime.stream().is_cuda()) gpu_bytes_ = gpu_info(runtime.gpu()).total_bytes;
  if (writes) metrics_.emplace(config.logging.dir, open_metric_sinks(config.logging), resumes_after);
}

// Reports the lost lines of a run that fails, because such a run does not call end().
StepLog::~StepLog() {
  if (console_ != nullptr) console_->show_progress("");
  if (!metrics_ || has_ended_) return;
  try {
    flush();
    for (const std::string& lost : metrics_->end()) log_warning("{}", lost);
  } catch (const std::exception&) {  // There is no memory for the warning.
  }
}

void StepLog::count(const MetricRow& row) {
  const int64_t samples = batches_.batch_size(row.step);
  interval_.add(row);
  samples_ += samples;
  loss_.add(row.at("loss"));
  token_s_.add(row.at("step_ms") / 1e3 / static_cast<double>(samples * config_.data.seq_len));
  progress_ = row;
  // Limits the updates, so that they cost nothing and the line still looks alive.
  constexpr std::chrono::milliseconds kPause{250};
  const auto now = std::chrono::steady_clock::now();
  if (!shows_progress() || (shown_ && now - *shown_ < kPause)) return;
  shown_ = now;
  console_->show_progress(progress());
}

std::string StepLog::progress() {
  progress_.set("loss", loss_.value());
  set_rates(progress_, token_s_.value());
  const double eta_s = tokens_left(progress_.step) * token_s_.value();
  return progress_line(progress_, eta_s, gib(gpu_bytes_), console_->columns(), console_->has_colors());
}

double StepLog::tokens_left(int64_t step) const {
  const int64_t samples = batches_.samples(config_.training.steps) - batches_.samples(step);
  return static_cast<double>(samples * config_.data.seq_len + config_.stage.later_tokens);
}

void StepLog::set_rates(MetricRow& row, double token_s) const {
  const double wps = 1 / token_s / runtime_.group().size();
  const ModelFlops flops = flops_of_step(config_, row);
  row.set("wps", wps);
  row.set("tflops", wps * flops.palm / 1e12);
  if (runtime_.stream().is_cuda()) {
    const Utilization use = utilization_of(flops, wps);
    row.set("mfu", use.mfu);
    row.set("mfu_causal", use.mfu_causal);
    row.set("utilization", use.utilization);
  }
  row.set("memory_gib", runtime_.memory_gib());
}

void StepLog::report(MetricRow row) {
  const MetricInterval interval = std::exchange(interval_, {});
  const auto tokens = static_cast<double>(std::exchange(samples_, 0) * config_.data.seq_len);
  if (!metrics_) return;
  interval.combine_into(row);
  const double token_s = row.at("step_ms") / 1e3 * static_cast<double>(interval.steps()) / tokens;
  set_rates(row, token_s);
  const bool on_terminal = shows_progress();
  if (row.get("mfu").value_or(0) > 1 && !std::exchange(explained_mfu_, true)) log_info("{}", kAbove100);
  log_line(on_terminal ? LogLevel::kDetail : LogLevel::kInfo, console_line(row, tokens_left(row.step) * token_s));
  const std::optional<double> validation = row.get("validation_loss");
  if (on_terminal && validation) {
    console_->print(fmt::format("step {}/{}  loss {:.4f}  validation_loss {:.4f}", row.step, row.total_steps,
                                unsigned_nan(row.at("loss")), unsigned_nan(*validation)));
  }
  std::vector<std::string> losses;
  for (const auto& [name, loss] : row.by_dataset("validation_loss_by_dataset"))
    losses.push_back(fmt::format("{} {:.4f}", name, unsigned_nan(loss)));
  if (!losses.empty()) log_info("validation_loss of {}", fmt::join(losses, ", "));
  reported_ = row;
  queue_.post([this, row = std::move(row)]() mutable {
    set_energy(row);
    metrics_->write(row);
  });
}

void StepLog::report_again(const std::function<bool(MetricRow&)>& add) {
  while (reported_ && add(*reported_)) queue_.post([this, row = *reported_] { metrics_->write(row); });
}

// Sets the energy metrics of rank 0's GPU since the previous row. The first row opens the counters. Runs on the thread
// that writes files, because the driver may take milliseconds to answer.
void StepLog::set_energy(MetricRow& row) {
  constexpr double kMinMs = 1000;
  try {
    if (!std::exchange(has_opened_energy_, true) && runtime_.stream().is_cuda())
      energy_.emplace(gpu_info(runtime_.gpu()).pci_bus_id);
    const std::optional<GpuUse> use = energy_ ? energy_->use(kMinMs) : std::nullopt;
    if (!use) return;
    row.set("watts", use->watts);
    row.set("sm_mhz", use->sm_mhz);
    row.set("joules_per_token", use->watts / row.at("wps"));
  } catch (const std::exception&) {  // The run continues without energy metrics.
    energy_.reset();
  }
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

std::vector<std::string> StepLog::end() {
  has_ended_ = true;
  flush();
  if (shows_progress() && shown_) {
    console_->show_progress("");
    console_->print(progress());
  }
  return metrics_ ? metrics_->end() : std::vector<std::string>();
}

}  // namespace octavo

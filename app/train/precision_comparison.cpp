#include "app/train/precision_comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "app/log/step_log.h"
#include "app/process/events.h"
#include "core/error.h"
#include "core/format.h"
#include "core/log.h"

namespace octavo {

namespace {

// Returns the tensors that the states of all precision recipes have.
std::vector<Tensor> common_tensors(const TrainingState& state) {
  std::vector<Tensor> tensors{state.parameters.master()};
  for (const OptimizerState& kept : state.optimizer.states()) tensors.push_back(kept.shards);
  return tensors;
}

}  // namespace

int64_t StateSnapshot::bytes(TrainingState& state) {
  int64_t bytes = 0;
  for (const Tensor& tensor : common_tensors(state)) bytes += tensor.bytes();
  const Tensor history = amax_history(state);
  return history.defined() ? bytes + history.bytes() : bytes;
}

void StateSnapshot::take(TrainingState& state, Stream& stream) {
  std::vector<Tensor> tensors = common_tensors(state);
  const Tensor history = amax_history(state);
  if (history.defined()) tensors.push_back(history);
  sizes_.clear();
  for (const Tensor& tensor : tensors) sizes_.push_back(tensor.bytes());
  memory_.reserve(std::accumulate(sizes_.begin(), sizes_.end(), int64_t{0}));
  data_ = static_cast<char*>(memory_.data());
  char* next = data_;
  for (const Tensor& tensor : tensors) {
    memory_.copy(stream, next, tensor.raw(), tensor.bytes());
    next += tensor.bytes();
  }
  stream.synchronize();
}

void StateSnapshot::restore(TrainingState& state, int64_t steps_done, Stream& stream) const {
  std::vector<Tensor> tensors = common_tensors(state);
  const Tensor history = amax_history(state);
  const bool with_history = history.defined() && sizes_.size() > tensors.size();
  if (with_history) tensors.push_back(history);
  const char* next = data_;
  for (size_t i = 0; i < tensors.size(); ++i) {
    CHECK(i < sizes_.size() && tensors[i].bytes() == sizes_[i],
          "a snapshot of {} tensors, of which number {} does not "
          "have the {} bytes of this state",
          sizes_.size(), i, tensors[i].bytes());
    memory_.copy(stream, tensors[i].raw(), next, sizes_[i]);
    next += sizes_[i];
  }
  if (history.defined()) {
    if (!with_history) stream.zero(history);
    state.model.amaxes()->set_steps_done(steps_done);
    state.model.amaxes()->restore(stream);
  }
  stream.synchronize();  // The memory of the snapshot may be reused after this.
}

double precision_gap(std::span<const double> fp8, std::span<const double> bfloat16) {
  double difference = 0;
  for (size_t i = 0; i < bfloat16.size(); ++i) difference += std::abs(fp8[i] - bfloat16[i]);
  const double gap = difference / std::accumulate(bfloat16.begin(), bfloat16.end(), 0.0);
  return std::isfinite(gap) ? gap : std::numeric_limits<double>::infinity();
}

PrecisionComparison::PrecisionComparison(const Config& config, Runtime& runtime, TrainingRun& run)
    : config_(config),
      runtime_(runtime),
      run_(run),
      enabled_(has_precision_guard(config)),
      snapshot_(runtime.stream()) {
  if (!enabled_) {
    if (config.precision_guard.every > 0 && runtime.group().is_root())
      log_warning("precision.guard.every is {}, but no matmul is in FP8, so there is nothing to compare",
                  config.precision_guard.every);
    return;
  }
  const int64_t bytes = StateSnapshot::bytes(run.state());
  runtime.group().agree([&] {
    const HostMemory host = share_of_host_memory(runtime.group());
    CHECK_INPUT(bytes <= host.available_bytes,
                "precision.guard keeps a snapshot of the state in host memory, {:.1f} GiB per rank, but {:.1f} GiB are "
                "available{}; disable it with precision.guard.every=0",
                gib(bytes), gib(host.available_bytes), host.describe_limit());
    snapshot_.reserve(bytes);
  });
}

bool PrecisionComparison::due(int64_t step) const {
  // A run that resumes at the last step of a fallback is already in FP8, where the whole run was still in bfloat16.
  return enabled_ && step % config_.precision_guard.every == 0 && !running() && !run_.in_bfloat16() &&
         step != run_.start().bfloat16_until;
}

bool PrecisionComparison::ends_fallback(int64_t step) const {
  return run_.in_bfloat16() && step >= run_.start().bfloat16_until;
}

void PrecisionComparison::warm_up() {
  if (enabled_) in_other_precision(run_.start().step, [&] { run_.warm_up(); });
}

Step PrecisionComparison::next_batch(int64_t number) {
  if (next_batch_ < batches_.size()) {
    Step step = batches_[next_batch_++].step;
    step.number = number;
    return step;
  }
  Step step = run_.next_batch(number);
  if (!keeps_batches_) {
    batches_.clear();
    next_batch_ = 0;
    return step;
  }
  KeptBatch& kept = batches_.emplace_back(*step.batch, step);
  kept.step.batch = &kept.batch;
  kept.step.data_ms = kept.step.data_lost_ms = 0;
  next_batch_ = batches_.size();
  return step;
}

void PrecisionComparison::begin(Progress before) {
  before_ = std::move(before);
  batches_.erase(batches_.begin(), batches_.begin() + static_cast<std::ptrdiff_t>(next_batch_));
  next_batch_ = 0;
  keeps_batches_ = true;
  const int64_t last = std::min(before_.step + config_.precision_guard.steps, config_.training.steps);
  in_other_precision(before_.step, [&] {
    for (int64_t step = before_.step + 1; step <= last; ++step)
      bfloat16_losses_.push_back(run_.loss_of_step(next_batch(step)));
  });
  next_batch_ = 0;
}

void PrecisionComparison::add(int64_t step, double loss) {
  gap_.reset();
  if (!running()) return;
  fp8_losses_.push_back(loss);
  if (fp8_losses_.size() < bfloat16_losses_.size()) return;
  gap_ = precision_gap(fp8_losses_, bfloat16_losses_);
  end();
  if (!runtime_.group().is_root()) return;
  const std::string found =
      fmt::format("precision.guard: the losses of {} in FP8 differ from those in bfloat16 by {:.4g} of their mean",
                  describe_steps(before_.step + 1, step), unsigned_nan(*gap_));
  if (*gap_ <= config_.precision_guard.tolerance) return log_info("{}", found);
  log_event(EventKind::kWarning, step, "{}, more than {}", found, config_.precision_guard.tolerance);
}

bool PrecisionComparison::wants_rollback() const {
  const PrecisionGuardConfig& guard = config_.precision_guard;
  return gap_ && *gap_ > guard.tolerance && guard.action == OnPrecisionGap::kBFloat16;
}

void PrecisionComparison::settle() {
  if (!running()) keeps_batches_ = false;
}

void PrecisionComparison::roll_back() {
  end();
  next_batch_ = 0;
  before_.bfloat16_until = before_.step + config_.precision_guard.fallback_steps;
  run_.return_to(before_);
  switch_precision(before_.step);
  if (!runtime_.group().is_root()) return;
  log_event(EventKind::kFallback, before_.step, "rolled back to step {}; the run continues in bfloat16 until step {}",
            before_.step, before_.bfloat16_until);
}

void PrecisionComparison::return_to_fp8(int64_t step) {
  snapshot_.take(run_.state(), runtime_.stream());
  switch_precision(step);
  if (runtime_.group().is_root())
    log_event(EventKind::kNote, step + 1, "the run continues in {} from step {}",
              is_fp8(config_.precision.linear) ? precision_name(config_.precision) : "FP8", step + 1);
}

void PrecisionComparison::cancel() {
  end();
  batches_.clear();
  next_batch_ = 0;
  keeps_batches_ = false;
}

void PrecisionComparison::end() {
  bfloat16_losses_.clear();
  fp8_losses_.clear();
}

void PrecisionComparison::in_other_precision(int64_t step, const std::function<void()>& work) {
  snapshot_.take(run_.state(), runtime_.stream());
  switch_precision(step);
  work();
  switch_precision(step);
}

void PrecisionComparison::switch_precision(int64_t step) {
  Stream& stream = runtime_.stream();
  run_.switch_precision();
  snapshot_.restore(run_.state(), step, stream);
  publish_weights(run_.state());
  stream.synchronize();
}

}  // namespace octavo

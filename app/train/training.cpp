#include "app/train/training.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "app/inputs/same_files.h"
#include "app/process/events.h"
#include "app/run/weights.h"
#include "app/text/tokenizer.h"
#include "app/train/resume.h"
#include "core/error.h"
#include "core/format.h"
#include "core/log.h"
#include "core/profiler.h"
#include "kernels/math/reduce.h"

namespace octavo {

namespace {

constexpr size_t kRecentSteps = 8;  // Number of steps whose samples are remembered, more than can be pending.

void warn_about_wait(const DataWait& wait) {
  log_event(EventKind::kWarning, wait.step, "step {} has been waiting for data for {:.0f} s; rank 0 is reading {}",
            wait.step, wait.seconds, wait.file.empty() ? "its first sample" : wait.file);
}

}  // namespace

Training::Training(const Job& job, Session& session)
    : session_(session),
      runtime_(session.runtime),
      config_(job.stated),
      job_(job),
      is_first_stage_(!session.has_begun()),
      model_(job, true, runtime_),
      state_(model_.state()),
      results_(state_),
      snapshot_(runtime_.stream()),
      step_guard_(config_.training, config_.logging.every),
      staged_(&session.checkpoints.staged()) {
  session_.timer.mark("memory");
  runtime_.group().throw_file_errors_on_all_ranks("opening the data", [&] {
    if (!config_.data.validation.empty()) validator_.emplace(config_, runtime_, model_.arena());
  });
}

Training::~Training() {
  session_.checkpoints.staged().wait();
  session_.memory_checkpoints.wait_until_staged();
}

void Training::load(const Job& job, Start& start) {
  const bool is_first = observers_.empty();
  auto* const checkpoint = std::get_if<Checkpoint>(&start.values);
  const bool from_initial = std::holds_alternative<std::monostate>(start.values);
  const std::unique_ptr<WeightSource> initial =
      from_initial ? open_same_weights(config_.init_from, runtime_.group()) : nullptr;
  std::vector<AttachedFile> tokenizer;
  if (in_fallback(job) != in_fallback(job_)) lay_out(job);
  staged_->wait();
  job_ = job;
  start_ = start.progress;
  recent_samples_.clear();
  const std::string damage = damage_found("reading the weights", runtime_.group(), [&] {
    open_data(start);
    load_values(start, initial.get());
    if (!is_first) return;
    data_report_->check_max_epochs();
    if (runtime_.group().is_root()) tokenizer = tokenizer_to_attach(config_.data, checkpoint);
  });
  if (!damage.empty()) throw DamagedCheckpoint(damage);
  // A job that continues where the last one ended keeps its guard, because the JSON lacks the durations of steps.
  if (start_.guard != step_guard_.to_json()) step_guard_.from_json(start_.guard);
  if (is_first) {
    for (const auto make : kObservers) observers_.push_back(make({config_, runtime_, state_, session_.checkpoints}));
  }
  cast_weights(state_);
  runtime_.stream().synchronize();
  if (is_first) {
    session_.timer.mark("weights");
    const std::vector<CheckpointTensor> pieces = saved_tensors(state_, runtime_);
    session_.checkpoints.attach(tokenizer);
    session_.checkpoints.prepare(pieces, start_.step, config_.training.steps);
    session_.memory_checkpoints.prepare(pieces, tokenizer);
    reserve_snapshot();
    return;
  }
  // A later start would otherwise resume a state that was saved in memory after the checkpoint, which would undo the
  // rollback.
  staged_ = &session_.checkpoints.staged();
  if (checkpoint != nullptr) session_.memory_checkpoints.discard();
  announce_new_state();
}

// Opens the data at start_, or rewinds the open data to it if `start` is a snapshot.
void Training::open_data(const Start& start) {
  if (std::holds_alternative<const StateSnapshot*>(start.values)) {
    loader_->rewind(start_.loader_state, start_.step);
  } else {
    LoaderOptions options = loader_options(config_, start_.step);
    options.rank = runtime_.mesh().data_rank();
    options.num_ranks = runtime_.mesh().shape().data();
    options.context = runtime_.mesh().context_rank();
    if (runtime_.group().is_root()) options.on_wait = warn_about_wait;
    data_report_.reset();
    loader_.reset();
    loader_ = open_loader(job_.config, options, start_.loader_state, runtime_.group().is_root());
    data_report_.emplace(config_.data, *loader_, samples_left(config_, start_.step));
  }
  next_sample_ = loader_->state().next_sample;
  start_.loader_state = loader_->state_json();
  session_.timer.mark("data");
}

void Training::rewind_data(const Progress& progress) {
  runtime_.group().throw_on_all_ranks([&] { loader_->rewind(progress.loader_state, progress.step); });
  next_sample_ = loader_->state().next_sample;
}

// Loads the state at which a job begins. Runs no collectives.
void Training::load_values(Start& start, WeightSource* initial) {
  Stream& stream = runtime_.stream();
  const bool is_root = runtime_.group().is_root();
  if (const auto* const snapshot = std::get_if<const StateSnapshot*>(&start.values)) {
    (*snapshot)->restore(state_, start_.step, stream);
  } else if (auto* const checkpoint = std::get_if<Checkpoint>(&start.values)) {
    load_state(*checkpoint, state_, stream);
    const std::string path = checkpoint->path().string();
    if (config_.optimizer.ema_decay > 0 && !checkpoint->has_average() && is_root)
      log_info("{} has no moving average of the weights, so the average starts from its weights", path);
    session_.timer.mark("reading");
    // Logged on a separate line after the start screen, so that the line is neither broken nor shortened and scripts
    // can find it.
    if (observers_.empty() && is_root)
      log_event(EventKind::kRestart, start_.step, "resuming {} after step {}", path, start_.step);
  } else {
    load_initial_weights(config_, initial, state_.parameters, stream);
    if (initial != nullptr) start_.hugging_face = initial->hugging_face();
    state_.optimizer.begin(stream);
    if (!config_.init_from.empty()) session_.timer.mark("reading");
  }
}

void Training::reserve_snapshot() {
  if (!has_precision_guard(config_)) {
    if (config_.precision_guard.every > 0 && runtime_.group().is_root())
      log_warning("precision.guard.every is {}, but no matmul is in FP8, so there is nothing to compare",
                  config_.precision_guard.every);
    return;
  }
  const int64_t bytes = StateSnapshot::bytes(state_);
  runtime_.group().throw_on_all_ranks([&] {
    const HostMemory host = share_of_host_memory(runtime_.group());
    CHECK_INPUT(bytes <= host.available_bytes,
                "precision.guard keeps a snapshot of the state in host memory, {:.1f} GiB per rank, but {:.1f} GiB are "
                "available{}; disable it with precision.guard.every=0",
                gib(bytes), gib(host.available_bytes), host.describe_limit());
    snapshot_.reserve(bytes);
  });
}

void Training::open_log() {
  runtime_.group().throw_file_errors_on_all_ranks("opening the log", [&] {
    if (is_first_stage_) session_.claim_folder(start_);
    log_.emplace(config_, runtime_, runtime_.group().is_root(),
                 session_.continues() ? std::optional(start_.step) : std::nullopt, session_.console);
  });
  is_first_stage_ ? session_.begin(start_) : session_.memory_checkpoints.begin();
  session_.timer.mark("memory");
}

void Training::warm_up() {
  Goodput& goodput = *session_.goodput;
  goodput.add(Goodput::kStart, is_first_stage_ ? seconds_since_launch() : seconds_since(created_));
  const auto begin = std::chrono::steady_clock::now();
  runtime_.tune([&] {
    const auto warm_up = [&] { octavo::warm_up(state_); };
    if (has_precision_guard(config_)) try_other_precision(start_.step, warm_up);
    warm_up();
  });
  if (runtime_.stream().is_cuda()) session_.timer.mark("plans and tuning");
  goodput.add(Goodput::kTuning, seconds_since(begin));
  if (!runtime_.group().is_root()) return;
  const StageSpan& stage = config_.stage;
  if (stage.number > 0)
    log_info("stage {} of {}: steps {} to {}, {} sequences of {} tokens per step", stage.number, config_.stages.size(),
             stage.steps_before + 1, config_.training.steps, config_.training.global_batch_size, config_.data.seq_len);
  if (is_first_stage_) log_info("started in {}", session_.timer.report());
}

void Training::announce_new_state() {
  for (const auto& observer : observers_) observer->on_new_state();
}

bool Training::allows_save(int64_t step) {
  return std::ranges::all_of(observers_, [&](const auto& observer) { return observer->allows_save(step); });
}

// Returns the number of targets by dataset. With a document mask, the ranks count the targets, because documents can
// end anywhere.
std::vector<int64_t> Training::targets_of_step(const Batch& batch) {
  const int64_t seq_len = config_.data.seq_len;
  std::vector<int64_t> targets(batch.dataset_samples.size());
  if (!config_.data.document_mask) {
    for (size_t d = 0; d < targets.size(); ++d) targets[d] = batch.dataset_samples[d] * seq_len;
    return targets;
  }
  for (size_t row = 0; row < batch.dataset.size(); ++row) {
    const auto length = static_cast<size_t>(runtime_.mesh().context_rank().share(seq_len));
    targets[static_cast<size_t>(batch.dataset[row])] +=
        count_targets(std::span(batch.targets).subspan(row * length, length));
  }
  for (int64_t& sum : targets) sum = static_cast<int64_t>(runtime_.sum_over_tokens(static_cast<double>(sum)));
  return targets;
}

TrainingStep Training::work_of(const Step& step) const {
  return {.number = step.number, .lr = config_.learning_rate(step.number), .targets = step.num_targets()};
}

Step Training::next_batch(int64_t number) {
  const ProfilerRange range(runtime_.stream(), "next batch", Profiler::Kind::kHostRange);
  Step step{.number = number};
  runtime_.group().throw_on_all_ranks([&] { step.batch = &loader_->next(); });
  step.samples = {next_sample_, step.batch->state_after.next_sample};
  step.loader_state = loader_->state_json();
  step.data_ms = loader_->data_ms();
  step.data_lost_ms = results_.is_idle() ? step.data_ms : 0;
  next_sample_ = step.samples.end;
  return step;
}

void Training::log_events(const Batch& batch, int64_t step) {
  data_report_->log_events(batch, step);
  const BatchSchedule batches = config_.training.batch_schedule();
  const int64_t size = batches.batch_size(step);
  if (step > start_.step + 1 && size != batches.batch_size(step - 1))
    log_info("training.batch_size_warmup: {} sequences per step from step {} on", size, step);
}

void Training::warn_about_no_targets(int64_t step, SampleRange samples) {
  if (!runtime_.group().is_root() || std::exchange(warned_about_no_targets_, true)) return;
  log_event(
      EventKind::kWarning, step,
      "step {}: all targets of samples {} to {} are masked (data.document_mask), so its loss and gradients are 0 and "
      "only momentum and weight decay change the weights; more such steps are not reported",
      step, samples.begin, samples.end - 1);
}

void Training::queue_step(Step step, float loss_limit) {
  const ProfilerRange range(runtime_.stream(), "queue step", Profiler::Kind::kHostRange);
  const Batch& batch = *step.batch;
  state_.batch.upload(batch);
  if (runtime_.group().is_root()) log_events(batch, step.number);
  step.targets = targets_of_step(batch);
  recent_samples_.emplace_back(step.number, step.samples);
  if (recent_samples_.size() > kRecentSteps) recent_samples_.pop_front();
  if (step.num_targets() == 0) warn_about_no_targets(step.number, step.samples);
  TrainingStep work = work_of(step);
  work.loss_limit = loss_limit;
  work.update_after = staged_;
  step.row = MetricRow(step.number, config_.stage.run_steps);
  step.row.in_bfloat16 = in_fallback(job_);
  if (config_.stage.number > 0) step.row.set("stage", config_.stage.number);
  step.row.set("lr", work.lr);
  step.row.set("tokens", tokens_seen(step.number));
  step.row.set("data_ms", step.data_ms);
  step.row.set("attended_tokens", state_.batch.attended_tokens());
  step.row.set("epochs", data_report_->epochs(batch.state_after));
  for (const auto& observer : observers_) observer->before_step(work);
  training_step(state_, work);
  for (const auto& observer : observers_) observer->after_step(step.number);
  step.batch = nullptr;
  results_.push(std::move(step));
}

Step Training::pop_step() {
  const ProfilerRange range(runtime_.stream(), "wait for the result", Profiler::Kind::kHostRange);
  Step step = results_.pop();
  step.row.set("loss", step.loss());
  step.row.set("grad_norm", step.grad_norm);
  step.row.set("step_ms", step.step_ms);
  step.row.set("loss_by_dataset", data_report_->means(step.loss_sums, step.targets));
  for (const auto& observer : observers_) observer->on_result(step);
  return step;
}

double Training::loss_of_step(int64_t number) {
  Step step = next_batch(number);
  state_.batch.upload(*step.batch);
  step.targets = targets_of_step(*step.batch);
  training_step(state_, work_of(step));
  std::vector<float> sums(static_cast<size_t>(state_.loss.numel()));
  runtime_.stream().copy(sums.data(), state_.loss.raw(), state_.loss.bytes());
  runtime_.stream().synchronize();
  step.loss_sums.assign(sums.begin(), sums.end());
  return step.loss();
}

void Training::save(const Progress& progress, Save which) {
  const nlohmann::json meta = checkpoint_meta(session_.config, progress);
  const std::vector<CheckpointTensor> pieces = saved_tensors(state_, runtime_);
  if (which == Save::kInMemory) {
    session_.memory_checkpoints.save(progress.step, meta, pieces, session_.checkpoints);
    staged_ = &session_.memory_checkpoints.staged();
  } else {
    session_.checkpoints.save(progress.step, meta, pieces, which == Save::kFinal);
    staged_ = &session_.checkpoints.staged();
  }
}

void Training::poll_saves() {
  session_.checkpoints.poll();
  session_.memory_checkpoints.poll();
}

bool Training::weights_are_finite() {
  Stream& stream = runtime_.stream();
  // The optimizer does not use this tensor here, so it serves as scratch memory.
  const Tensor& sum = state_.optimizer.grad_sum_of_squares();
  float squares = 0;
  stream.zero(sum);
  sum_of_squares({.out = sum, .x = state_.parameters.master()}, stream);
  stream.copy(&squares, sum.raw(), sizeof(squares));
  stream.synchronize();
  return runtime_.group().all_reduce_max(std::isfinite(squares) ? 0 : 1) == 0;
}

const StateSnapshot& Training::take_snapshot() {
  snapshot_.take(state_, runtime_.stream());
  return snapshot_;
}

void Training::try_other_precision(int64_t step, const std::function<void()>& work) {
  take_snapshot();
  const auto use = [&](const Job& job) {
    lay_out(job);
    announce_new_state();
    snapshot_.restore(state_, step, runtime_.stream());
    cast_weights(state_);
    runtime_.stream().synchronize();
  };
  use(in_other_precision(job_));
  work();
  use(job_);
}

// Lays the state out for a job in the other precision, without its values.
void Training::lay_out(const Job& job) {
  CHECK(has_precision_guard(config_), "there is no memory for a state in another precision");
  staged_->wait();
  model_.lay_out_again(job, runtime_);
}

std::optional<SampleRange> Training::samples_of(int64_t step) const {
  const auto found = std::ranges::find_if(recent_samples_, [&](const auto& recent) { return recent.first == step; });
  return found == recent_samples_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace octavo

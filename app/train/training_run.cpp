#include "app/train/training_run.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "app/config/stages.h"
#include "app/inputs/model_path.h"
#include "app/inputs/same_files.h"
#include "app/process/events.h"
#include "app/run/weights.h"
#include "app/text/tokenizer.h"
#include "app/train/resume.h"
#include "core/error.h"
#include "core/log.h"
#include "core/profiler.h"
#include "kernels/math/reduce.h"

namespace octavo {

namespace {

constexpr size_t kRecentSteps = 8;  // Number of steps whose samples are remembered, more than can be pending.

}  // namespace

TrainingRun::TrainingRun(const Job& job, Runtime& runtime, StartupTimer& timer, DiskCheckpoints& checkpoints,
                         MemoryCheckpoints& memory_checkpoints, std::optional<Checkpoint> resumed,
                         const std::function<void(Arena&)>& with_validation)
    : config_(job.stated),
      runtime_(runtime),
      timer_(timer),
      model_(job, true, runtime),
      state_(model_.state()),
      results_(state_),
      checkpoints_(checkpoints),
      memory_checkpoints_(memory_checkpoints) {
  timer_.mark("memory");
  runtime.group().agree_on_files("opening the data", [&] { with_validation(model_.arena()); });
  const std::unique_ptr<WeightSource> initial =
      resumed ? nullptr : open_same_weights(config_.init_from, runtime.group());
  std::vector<CarriedFile> tokenizer;
  const std::string damage = damage_found("reading the weights", runtime.group(), [&] {
    resume_or_initialize(resumed, initial.get());
    data_report_->check_max_epochs();
    if (runtime.group().is_root()) tokenizer = tokenizer_to_carry(config_.data, resumed);
  });
  if (!damage.empty()) throw DamagedCheckpoint(damage);
  for (const auto make : kObservers) observers_.push_back(make({config_, runtime, state_, checkpoints}));
  publish_weights(state_);
  runtime.stream().synchronize();
  timer_.mark("weights");
  const std::vector<CheckpointTensor> pieces = saved_tensors(state_, runtime);
  checkpoints_.carry(tokenizer);
  checkpoints_.prepare(pieces, start_.step, config_.training.steps);
  memory_checkpoints_.prepare(pieces, tokenizer);
}

void TrainingRun::announce_new_state() {
  for (const auto& observer : observers_) observer->on_new_state();
}

TrainingRun::~TrainingRun() {
  checkpoints_.staged().wait();
  memory_checkpoints_.wait_until_staged();
}

bool TrainingRun::allows_save(int64_t step) {
  return std::all_of(observers_.begin(), observers_.end(),
                     [&](const auto& observer) { return observer->allows_save(step); });
}

void TrainingRun::resume_or_initialize(std::optional<Checkpoint>& resumed, WeightSource* initial) {
  if (resumed) {
    check_may_resume(config_, *resumed, runtime_.group().is_root());
    load(*resumed, progress_of(*resumed));
    timer_.mark("reading");
    // Logged on a separate line after the start screen, so that the line is neither broken nor shortened and scripts
    // can find it.
    if (runtime_.group().is_root())
      log_event(EventKind::kRestart, start_.step, "resuming {} after step {}", resumed->path().string(), start_.step);
    return;
  }
  open_data();
  timer_.mark("data");
  load_initial_weights(config_, initial, state_.parameters, runtime_.stream());
  if (initial != nullptr) hugging_face_ = initial->hugging_face();
  state_.optimizer.begin(runtime_.stream());
  if (!config_.init_from.empty()) timer_.mark("reading");
}

// Opens the data at start_, and records the loader state there.
void TrainingRun::open_data() {
  LoaderOptions options = loader_options(config_, start_.step);
  options.rank = runtime_.mesh().data_rank();
  options.num_ranks = runtime_.mesh().shape().data();
  options.context = runtime_.mesh().context_rank();
  data_report_.reset();
  loader_.reset();
  Config config = config_;
  const std::vector<SampleRange>& rolled_back = start_.rolled_back;
  if (config.stage.number > 0 && !rolled_back.empty()) {
    const auto stage = static_cast<size_t>(config.stage.number - 1);
    config.data.origin = stage_configs(whole_config(config_), rolled_back)[stage].data.origin;
  }
  config.data.skip.insert(config.data.skip.end(), rolled_back.begin(), rolled_back.end());
  loader_ = open_loader(config, options, start_.loader_state, runtime_.group().is_root());
  next_sample_ = loader_->state().next_sample;
  data_report_.emplace(config_.data, *loader_, samples_left(config_, start_.step));
  start_.loader_state = loader_->state_json();
}

// Loads everything that a resumed run needs, and continues from `progress`, which is that of the checkpoint except for
// the samples that a rollback skips. Runs no collectives. May replace the state, of which existing observers must be
// told.
void TrainingRun::load(Checkpoint& checkpoint, Progress progress) {
  check_same_model(checkpoint.model_config(), config_.model, checkpoint.path().string());
  const nlohmann::json& meta = checkpoint.meta();
  start_ = std::move(progress);
  hugging_face_ = meta.value(kHfMetaKey, nlohmann::json());
  // A run that resumes its own checkpoint records in later ones where it began.
  if (const std::string path = recorded_beginning(meta); config_.checkpoint.resume == "auto" && !path.empty())
    config_.checkpoint.resume = path;
  open_data();
  timer_.mark("data");
  if (has_precision_guard(config_) && in_bfloat16() != (start_.step < start_.bfloat16_until)) replace_state();
  load_state(checkpoint, state_, runtime_.stream());
  if (config_.optimizer.ema_decay > 0 && !checkpoint.has_average() && runtime_.group().is_root()) {
    log_info("{} has no moving average of the weights, so the average starts from its weights",
             checkpoint.path().string());
  }
}

void TrainingRun::warm_up() { octavo::warm_up(state_); }

// Returns the number of targets by dataset. With a document mask, the ranks count the targets, because documents can
// end anywhere.
std::vector<int64_t> TrainingRun::targets_of_step(const Batch& batch) {
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

TrainingStep TrainingRun::work_of(const Step& step) const {
  return {.number = step.number, .lr = config_.learning_rate(step.number), .targets = step.num_targets()};
}

Step TrainingRun::next_batch(int64_t number) {
  const ProfilerRange range(runtime_.stream(), "next batch", Profiler::Kind::kHostRange);
  Step step{.number = number};
  runtime_.group().agree([&] { step.batch = &loader_->next(); });
  step.samples = {next_sample_, step.batch->state_after.next_sample};
  step.loader_state = loader_->state_json();
  step.data_ms = loader_->data_ms();
  step.data_lost_ms = results_.is_idle() ? step.data_ms : 0;
  next_sample_ = step.samples.end;
  return step;
}

void TrainingRun::log_events(const Batch& batch, int64_t step) {
  data_report_->log_events(batch, step);
  const BatchSchedule batches = config_.training.batch_schedule();
  const int64_t size = batches.batch_size(step);
  if (step > start_.step + 1 && size != batches.batch_size(step - 1))
    log_info("training.batch_size_warmup: {} sequences per step from step {} on", size, step);
}

void TrainingRun::warn_about_no_targets(int64_t step, SampleRange samples) {
  if (!runtime_.group().is_root() || std::exchange(warned_about_no_targets_, true)) return;
  log_event(
      EventKind::kWarning, step,
      "step {}: all targets of samples {} to {} are masked (data.document_mask), so its loss and gradients are 0 and "
      "only momentum and weight decay change the weights; more such steps are not reported",
      step, samples.begin, samples.end - 1);
}

void TrainingRun::queue_step(Step step, float loss_limit) {
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
  step.row = MetricRow(step.number, config_.total_steps());
  step.row.in_bfloat16 = in_bfloat16();
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

Step TrainingRun::pop_step() {
  const ProfilerRange range(runtime_.stream(), "wait for the result", Profiler::Kind::kHostRange);
  Step step = results_.pop();
  step.row.set("loss", step.loss());
  step.row.set("grad_norm", step.grad_norm);
  step.row.set("step_ms", step.step_ms);
  step.row.set("loss_by_dataset", data_report_->means(step.loss_sums, step.targets));
  for (const auto& observer : observers_) observer->on_result(step);
  return step;
}

double TrainingRun::loss_of_step(Step step) {
  state_.batch.upload(*step.batch);
  step.targets = targets_of_step(*step.batch);
  training_step(state_, work_of(step));
  std::vector<float> sums(static_cast<size_t>(state_.loss.numel()));
  runtime_.stream().copy(sums.data(), state_.loss.raw(), state_.loss.bytes());
  runtime_.stream().synchronize();
  step.loss_sums.assign(sums.begin(), sums.end());
  return step.loss();
}

void TrainingRun::save(const Progress& progress, Save which) {
  nlohmann::json meta = checkpoint_meta(config_, progress);
  if (!hugging_face_.is_null()) meta[kHfMetaKey] = hugging_face_;
  const std::vector<CheckpointTensor> pieces = saved_tensors(state_, runtime_);
  if (which == Save::kInMemory) {
    memory_checkpoints_.save(progress.step, meta, pieces, checkpoints_);
    staged_ = &memory_checkpoints_.staged();
  } else {
    checkpoints_.save(progress.step, meta, pieces, which == Save::kFinal);
    staged_ = &checkpoints_.staged();
  }
}

void TrainingRun::poll_saves() {
  checkpoints_.poll();
  memory_checkpoints_.poll();
}

bool TrainingRun::weights_are_finite() {
  Stream& stream = runtime_.stream();
  // The tensor is free at this point and serves as scratch.
  const Tensor& sum = state_.optimizer.grad_sum_of_squares();
  float squares = 0;
  stream.zero(sum);
  sum_of_squares({.out = sum, .x = state_.parameters.master()}, stream);
  stream.copy(&squares, sum.raw(), sizeof(squares));
  stream.synchronize();
  return runtime_.group().all_reduce_max(std::isfinite(squares) ? 0 : 1) == 0;
}

void TrainingRun::roll_back(int64_t step) {
  std::optional<Checkpoint> checkpoint = checkpoints_.open_last(loaded_parts(state_));
  SampleRange samples;
  runtime_.group().agree_on_files("rolling back", [&] {
    CHECK(checkpoint.has_value(), "there is no checkpoint to roll back to from step {}", step);
    const auto found = std::find_if(recent_samples_.begin(), recent_samples_.end(),
                                    [&](const auto& recent) { return recent.first == step; });
    CHECK(found != recent_samples_.end(), "the samples of step {} are unknown", step);
    CHECK(stage_of_step(config_, checkpoint->step() + 1) == stage_of_step(config_, start_.step + 1),
          "the newest undamaged checkpoint, {}, belongs to an earlier stage, so step {} cannot be rolled back to it",
          checkpoint->path().string(), step);
    samples = found->second;
    Progress progress = progress_of(*checkpoint);
    progress.rolled_back = start_.rolled_back;
    progress.rolled_back.push_back(samples);
    load(*checkpoint, std::move(progress));
    recent_samples_.clear();
  });
  // A later start would otherwise resume a state that was saved in memory after the checkpoint, which would undo the
  // rollback.
  staged_ = &checkpoints_.staged();
  memory_checkpoints_.discard();
  publish_weights(state_);
  announce_new_state();
  if (!runtime_.group().is_root()) return;
  log_event(EventKind::kRollback, start_.step, "rolled back to {} after step {}; samples {} to {} are skipped",
            checkpoint->path().string(), start_.step, samples.begin, samples.end - 1);
}

void TrainingRun::return_to(const Progress& progress) {
  start_ = progress;
  recent_samples_.clear();
}

void TrainingRun::switch_precision() {
  replace_state();
  announce_new_state();
}

// Makes a state in the other precision, without its values.
void TrainingRun::replace_state() {
  staged_->wait();
  model_.use_bfloat16(!in_bfloat16(), runtime_);
}

}  // namespace octavo

#include "app/trainer.h"

#include <spdlog/spdlog.h>

#include <cmath>
#include <utility>

#include "app/signals.h"
#include "app/weights.h"
#include "kernels/core/error.h"

namespace octavo {

namespace {

// Bytes of the training state and of the validator's buffers.
int64_t planned_bytes(const TrainingOptions& options, Runtime& runtime) {
  Arena plan = plan_training(options, training_rank(runtime));
  if (!options.config.data.validation.empty()) const Validator validator(options.config, runtime, plan);
  return plan.used();
}

// The amaxes of delayed FP8 scaling; undefined without it.
Tensor amax_history(TrainingState& state) {
  AmaxTable* amaxes = state.model.amaxes();
  return amaxes != nullptr ? amaxes->history() : Tensor();
}

// What of a checkpoint this rank's shard holds: the master weights and both moments of its pieces of the parameters.
std::vector<CheckpointTensor> checkpoint_tensors(TrainingState& state, bool with_history) {
  std::vector<CheckpointTensor> tensors;
  const auto add = [&](const std::string& prefix, const Tensor& shards) {
    for (const ParameterPiece& piece : state.parameters.pieces()) {
      const ParameterSpec& spec = *piece.spec;
      if (!spec.counts) continue;
      tensors.push_back({.name = prefix + spec.name,
                         .shape = spec.whole_shape,
                         .begin = spec.column_offset() + piece.begin,
                         .end = spec.column_offset() + piece.end,
                         .data = shards.rows(piece.offset, piece.offset + piece.end - piece.begin),
                         .columns = spec.columns()});
    }
  };
  add("", state.parameters.master());
  add(kExpAvg, state.optimizer.exp_avg());
  add(kExpAvgSq, state.optimizer.exp_avg_sq());
  if (const Tensor history = amax_history(state); with_history && history.defined()) {
    tensors.push_back(
        {kAmaxHistory, {history.dim(0), history.dim(1)}, 0, history.numel(), history.view({history.numel()})});
  }
  return tensors;
}

}  // namespace

Trainer::Trainer(const Config& config, Runtime& runtime)
    : config_(config),
      runtime_(runtime),
      layout_(config.model, runtime.tensor_rank()),
      options_(training_options(config_, layout_, runtime)),
      memory_(runtime.allocate([&] { return planned_bytes(options_, runtime); })),
      state_(options_, training_rank(runtime), memory_.arena),
      results_(runtime.stream().device()),
      writer_({config.checkpoint.dir, config.checkpoint.keep, config.checkpoint.async}, runtime.group(),
              runtime.stream()) {
  if (runtime.group().is_root()) log_decisions(options_, memory_.arena.buffer().bytes());
  if (!config.data.validation.empty()) validator_.emplace(config, runtime, memory_.arena);
  prepare_fp8_reports();
  runtime.group().agree([&] { resume_or_initialize(); });
  publish_weights(state_, runtime);
  runtime.group().agree([&] {
    writer_.reserve(CheckpointWriter::staging_bytes(checkpoint_pieces()));
    if (runtime.group().is_root()) metrics_.emplace(config.logging.dir, config.logging.tensorboard);
  });
}

void Trainer::prepare_fp8_reports() {
  if (Fp8StatsTable* table = state_.model.fp8_stats()) {
    fp8_reporter_.emplace(config_, *table, runtime_.stream().device());
  } else if (config_.logging.fp8_stats_every > 0 && runtime_.group().is_root()) {
    spdlog::warn("logging.fp8_stats_every is {}, but no linear is in FP8, so there is nothing to measure",
                 config_.logging.fp8_stats_every);
  }
}

void Trainer::resume_or_initialize() {
  const CheckpointConfig& c = config_.checkpoint;
  std::optional<std::filesystem::path> path;
  if (c.resume == "auto") path = Checkpoint::newest(c.dir);
  if (c.resume != "auto" && c.resume != "never") path = c.resume;
  Stream& stream = runtime_.stream();
  const LoaderOptions options{.global_batch_size = config_.training.global_batch_size,
                              .rank = runtime_.mesh().data().rank(),
                              .num_ranks = runtime_.mesh().data().size(),
                              .vocab_size = config_.model.vocab_size};
  if (!path) {
    loader_ = std::make_unique<Loader>(config_.data, options);
    return load_initial_weights(config_, state_.parameters, stream);
  }
  Checkpoint checkpoint(*path);
  check_same_model(checkpoint.model_config(), config_.model, checkpoint.path().string());
  const nlohmann::json& meta = checkpoint.meta();
  const bool has_loader = meta.contains("loader");  // an imported model has none and starts the data anew
  loader_ = std::make_unique<Loader>(config_.data, options, has_loader ? &meta.at("loader") : nullptr);
  // A rank reads parts of pieces, which have no checksums, so the ranks compare the pieces' in turn.
  checkpoint.verify(runtime_.group().rank(), runtime_.group().size());
  load_weights(checkpoint, state_.parameters, stream);
  load_moments(checkpoint, state_.parameters, state_.optimizer, stream);
  load_amax_history(checkpoint);
  if (AmaxTable* amaxes = state_.model.amaxes()) amaxes->set_steps_done(checkpoint.step());
  start_step_ = checkpoint.step();
  start_tokens_ = meta.value("tokens", int64_t{0});
  saved_step_ = start_step_;
  if (runtime_.group().is_root()) spdlog::info("resuming {} after step {}", checkpoint.path().string(), start_step_);
}

// A checkpoint of another recipe has no history, or one of another shape; delayed scaling then begins anew.
void Trainer::load_amax_history(Checkpoint& checkpoint) {
  const Tensor history = amax_history(state_);
  const CheckpointTensorInfo* found = checkpoint.find(kAmaxHistory);
  if (!history.defined() || found == nullptr || found->numel() != history.numel()) return;
  std::vector<float> host(static_cast<size_t>(history.numel()));
  checkpoint.read(kAmaxHistory, 0, history.numel(), host.data());
  runtime_.stream().copy(history.raw(), host.data(), history.bytes());
  runtime_.stream().synchronize();  // the host copy ends here
  state_.model.amaxes()->restore(runtime_.stream());
}

// Runs each kernel once, so that algorithms are timed, plans built and modules loaded before the first step. The
// gradients it leaves are overwritten by the first micro-batch.
void Trainer::warm_up() {
  if (!runtime_.stream().is_cuda()) return;
  state_.model.forward_backward(state_.batch.micro_batch(0), 0.0f, true, true);
  runtime_.stream().synchronize();
}

int64_t Trainer::tokens_per_step() const { return config_.training.global_batch_size * config_.data.seq_len; }

Trainer::Outcome Trainer::run() {
  catch_stop_signals();
  warm_up();
  Stream& stream = runtime_.stream();
  const int64_t total_steps = config_.training.steps;
  if (start_step_ >= total_steps && runtime_.group().is_root()) {
    spdlog::info("nothing to do: step {} of {} is reached", start_step_, total_steps);
  }
  results_.start(stream);
  for (int64_t step = start_step_ + 1; step <= total_steps; ++step) {
    const Batch& batch = loader_->next();
    interval_.data_ms += loader_->data_ms();
    state_.batch.upload(batch);
    train_step(step);

    const bool last = step == total_steps;
    const bool stopping = should_stop();
    const bool validating =
        validator_ && config_.validation.every > 0 && (last || step % config_.validation.every == 0);
    const bool saving = last || stopping || (config_.checkpoint.every > 0 && step % config_.checkpoint.every == 0);
    // A step that is saved or validated is waited for, so that weights spoiled by a bad step are never saved; on a GPU
    // any other is read when the next one is queued.
    const int64_t in_flight = stream.is_cuda() && !validating && !saving ? 1 : 0;
    while (results_.pending() > in_flight) {
      const bool current = results_.pending() == 1;
      finish_step(current && (last || stopping), current && validating);
    }
    if (writer_.pending()) writer_.poll();
    if (saving) save(step);
    if (saving || validating) results_.start(stream);
    if (stopping) {
      writer_.finish();
      return Outcome::kStopped;
    }
  }
  writer_.finish();
  return Outcome::kDone;
}

// Queues a step and the copy of its results to the host. The statistics' copy is the first of them, so that it is done
// when the step's result is popped.
void Trainer::train_step(int64_t step) {
  Stream& stream = runtime_.stream();
  const double lr = learning_rate(config_.optimizer, step, config_.training.steps);
  if (fp8_due(step)) fp8_reporter_->begin(stream);
  training_step(state_, step, lr, runtime_);
  if (fp8_due(step)) fp8_reporter_->end(runtime_.mesh().world(), stream);
  results_.push(step, state_.loss, state_.optimizer.grad_sum_of_squares(), stream);
}

// All ranks stop at the same step, whichever of them got the signal.
bool Trainer::should_stop() { return runtime_.group().all_reduce_max(stop_requested() ? 1 : 0) != 0; }

void Trainer::finish_step(bool always, bool validating) {
  const std::optional<StepResult> result = results_.pop();
  if (!result) return;
  ++interval_.steps;
  interval_.milliseconds += result->step_ms;
  const bool finite = std::isfinite(result->loss_sum) && std::isfinite(result->grad_norm);
  std::optional<double> validation_loss;
  if (validating && finite) validation_loss = validator_->loss(state_.model);
  const bool due = config_.logging.every > 0 && result->step % config_.logging.every == 0;
  const bool first = result->step == start_step_ + 1;
  if (due || first || always || validating || !finite || fp8_due(result->step)) report(*result, validation_loss);
  if (finite) return;
  runtime_.group().agree([&] {
    throw Error(fmt::format("the loss or the gradient norm of step {} is not finite; the last checkpoint is {}",
                            result->step, saved_step_ < 0 ? "none" : fmt::format("that of step {}", saved_step_)));
  });
}

void Trainer::report(const StepResult& result, std::optional<double> validation_loss) {
  const double seconds = interval_.milliseconds / 1e3;
  const double steps = static_cast<double>(interval_.steps);
  StepMetrics m;
  m.step = result.step;
  m.total_steps = config_.training.steps;
  m.loss = result.loss_sum / static_cast<double>(tokens_per_step());
  m.grad_norm = result.grad_norm;
  m.lr = learning_rate(config_.optimizer, result.step, m.total_steps);
  m.tokens = tokens_seen(result.step);
  m.wps = steps * static_cast<double>(tokens_per_step()) / seconds / runtime_.group().size();
  const double flops = m.wps * config_.model.flops_per_token(config_.data.seq_len);
  if (runtime_.stream().is_cuda()) m.mfu = flops / kPeakFlops;
  m.tflops = flops / 1e12;
  m.step_ms = 1e3 * seconds / steps;
  m.data_ms = interval_.data_ms / steps;
  m.memory_gib = runtime_.memory_gib();
  m.validation_loss = validation_loss;
  if (fp8_due(result.step)) m.fp8 = fp8_reporter_->pop();
  interval_ = {};
  if (!metrics_) return;
  spdlog::info(console_line(m, static_cast<double>(m.total_steps - m.step) * seconds / steps));
  metrics_->write(m);
  if (const std::optional<std::string> warning = fp8_warning(m.step, m.fp8)) spdlog::warn(*warning);
}

std::vector<CheckpointTensor> Trainer::checkpoint_pieces() {
  const Communicator& replicas = runtime_.mesh().replicate();  // they hold the same
  const bool with_history = runtime_.mesh().shard().rank() == 0 && runtime_.mesh().tensor().rank() == 0;
  return divide_tensors(checkpoint_tensors(state_, with_history), replicas.rank(), replicas.size());
}

void Trainer::save(int64_t step) {
  const nlohmann::json meta = {{"config", to_json(config_)},
                               {"loader", loader_->state_json()},
                               {"random", {{"seed", config_.training.seed}}},
                               {"tokens", tokens_seen(step)}};
  writer_.save(step, config_.model, meta, checkpoint_pieces());
  saved_step_ = step;
}

}  // namespace octavo

#include "app/run/training_state.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "app/run/fp8_report.h"
#include "checkpoint/checkpoint_writer.h"
#include "core/error.h"
#include "core/profiler.h"
#include "kernels/math/reduce.h"
#include "kernels/optimizer/skip_update.h"
#include "model/architecture/tensor_parallel.h"
#include "model/parameters/pipeline_stages.h"

namespace octavo {

namespace {

ShardingOptions sharding_of(const Job& job, const Mesh& mesh) {
  CHECK(is_decided(job.config), "a training state for a config that leaves choices open");
  ShardingOptions sharding = job.sharding();
  sharding.tokens = batch_shape(job.config, mesh).tokens();
  return sharding;
}

// Returns an upper bound for the number of hashes in a check for corruption. The bound is equal on all ranks. The check
// computes these hashes:
//
//   micro-batch 0     computed twice, each time: the losses, and the gradient of every unit
//   state             every unit, and k and v of every kv head in every layer: for the master weights, for the cast
//                     weights and for each moment
//   FP8               one hash of the amax history
int64_t most_hashes(const ModelConfig& model, int64_t moments, const Mesh& mesh) {
  // Norms, embedding, blocks, and lm_head unless it is tied.
  const int64_t units = model.num_layers + (model.tie_word_embeddings ? 2 : 3);
  const int64_t kv_heads = local_config(model, {.rank = 0, .size = mesh.shape().tensor}).num_kv_heads;
  return 2 * (1 + units) + (2 + moments) * (units + 2 * model.num_layers * kv_heads) + 1;
}

PipelinePosition position_of(const ParallelConfig& parallel, const Mesh& mesh) {
  return {.stages = mesh.shape().pipeline, .stage = mesh.rank(Axis::kPipeline), .chunks = parallel.pipeline_chunks};
}

}  // namespace

TrainingState::TrainingState(const Job& job, const Mesh& its_mesh, Arena& arena)
    : mesh(its_mesh),
      layout(layout_of_rank(job.config.model, job.config.parallel, mesh)),
      parameters(layout, job.config.precision, sharding_of(job, mesh), LlamaMode::kTraining, &mesh, arena,
                 mesh.stream()),
      model({.config = job.config.model,
             .shape = batch_shape(job.config, mesh),
             .precision = job.config.precision,
             .mode = LlamaMode::kTraining,
             .fp8_stats = reports_fp8(job.config),
             .mesh = &mesh,
             .checkpointing = job.config.activation_checkpointing,
             .z_loss = static_cast<float>(job.config.training.z_loss),
             .in_flight = pipeline_in_flight(job.config.parallel.pipeline_schedule,
                                             position_of(job.config.parallel, mesh), job.micro_batches()),
             .splits_backward =
                 splits_backward(job.config.parallel.pipeline_schedule, position_of(job.config.parallel, mesh)),
             .workspace_bytes =
                 Optimizer::workspace_bytes(job.config.optimizer, layout, job.config.precision.compute, mesh.stream())},
            parameters, arena, mesh.stream()),
      optimizer(job.config.optimizer, parameters, model.amaxes(), arena),
      batch(model.shape(), job.local_batch(), job.config.model.vocab_size, arena, mesh.stream()),
      loss(arena.allocate("loss", DType::kFloat32, {std::max<int64_t>(1, std::ssize(job.config.data.train))},
                          Lifetime::kStep)),
      z_loss(job.config.training.z_loss > 0 ? arena.allocate("z-loss", DType::kFloat32, {1}, Lifetime::kStep)
                                            : Tensor()),
      skip(arena.allocate("skip", DType::kFloat32, {1}, Lifetime::kStep)),
      schedule(job.config.parallel.pipeline_schedule),
      position(position_of(job.config.parallel, mesh)) {
  if (job.config.training.corruption_check_every == 0) return;
  hashes =
      arena.allocate("hashes", DType::kInt32, {most_hashes(job.config.model, std::ssize(optimizer.states()), mesh), 2});
}

std::vector<TrainingStream> training_streams(TrainingState& state) {
  Fsdp& fsdp = state.parameters.fsdp();
  std::vector<TrainingStream> streams = {{"compute", &state.mesh.stream()},
                                         {"sharding communication", &fsdp.transfers()},
                                         {"replica communication", &fsdp.replica_transfers()},
                                         {"tensor-parallel communication", &state.model.token_transfers()},
                                         {"context-parallel communication", &state.model.key_transfers()}};
  for (Stream* stream : state.model.stage_transfers()) {
    streams.push_back({"pipeline communication", stream, true});
  }
  return streams;
}

Arena plan_training(const Job& job, const Mesh& mesh) {
  Arena plan(mesh.stream().device());
  const TrainingState state(job, mesh, plan);
  return plan;
}

namespace {

void zero_losses(TrainingState& state, Stream& stream) {
  stream.zero(state.loss);
  if (state.z_loss.defined()) stream.zero(state.z_loss);
}

// Adds the losses of a micro-batch to the sums of their datasets. Each sequence belongs to one dataset.
void add_losses(TrainingState& state, int64_t micro_batch, Stream& stream) {
  if (state.z_loss.defined()) sum({.out = state.z_loss, .x = state.model.z_losses()}, stream);
  if (state.loss.numel() == 1) return sum({.out = state.loss, .x = state.model.losses()}, stream);
  const BatchShape& shape = state.model.shape();
  for (int64_t i = 0; i < shape.micro_batch_size; ++i) {
    const int64_t dataset = state.batch.dataset(micro_batch * shape.micro_batch_size + i);
    sum({.out = state.loss.rows(dataset, dataset + 1),
         .x = state.model.losses().rows(i * shape.seq_len, (i + 1) * shape.seq_len)},
        stream);
  }
}

// Sums the losses over the ranks. Only the last pipeline stage has losses, and the other stages add zeros.
void sum_losses(TrainingState& state, Stream& stream) {
  if (!state.parameters.layout().has_head()) zero_losses(state, stream);
  for (Communicator* ranks : {&state.mesh.tokens(), &state.mesh.pipeline()}) {
    ranks->all_reduce_sum(state.loss, stream, "losses");
    if (state.z_loss.defined()) ranks->all_reduce_sum(state.z_loss, stream, "z-losses");
  }
}

// Decides whether the step is skipped. All ranks agree on whether a number is finite. They may not agree on whether it
// exceeds the limit, because groups of ranks sum in different orders and the last bits differ, so the decision is
// reduced over all ranks.
void decide_on_update(TrainingState& state, const TrainingStep& step) {
  skip_update({.skip = state.skip,
               .loss_sums = state.loss,
               .grad_sum_of_squares = state.optimizer.grad_sum_of_squares(),
               .inverse_targets = inverse_targets(step),
               .loss_limit = step.loss_limit},
              state.mesh.stream());
  if (std::isfinite(step.loss_limit)) state.mesh.world().all_reduce_max(state.skip, state.mesh.stream());
}

}  // namespace

void training_step(TrainingState& state, const TrainingStep& step) {
  queue_entries(state, step, entries_of_step(state));
  finish_step(state, step);
}

float inverse_targets(const TrainingStep& step) {
  return 1.0f / static_cast<float>(std::max<int64_t>(step.targets, 1));
}

std::vector<StepEntry> entries_of_step(const TrainingState& state) {
  return pipeline_entries(state.schedule, state.position, state.batch.num_micro_batches());
}

void queue_entries(TrainingState& state, const TrainingStep& step, std::span<const StepEntry> entries) {
  Stream& stream = state.mesh.stream();
  const auto add = [&](int64_t micro_batch) {
    if (micro_batch == 0) zero_losses(state, stream);
    add_losses(state, micro_batch, stream);
  };
  state.model.run(entries, {.count = state.batch.num_micro_batches(),
                            .micro_batch = [&](int64_t i) { return state.batch.micro_batch(i); },
                            .scale = inverse_targets(step),
                            .after_losses = add});
}

void finish_step(TrainingState& state, const TrainingStep& step) {
  Stream& stream = state.mesh.stream();
  {
    const ProfilerRange range(stream, "gradient norm");
    state.mesh.meet_stages();
    sum_losses(state, stream);
    state.optimizer.measure_gradients(stream);
    decide_on_update(state, step);
  }
  const ProfilerRange range(stream, "optimizer");
  if (step.update_after != nullptr) step.update_after->wait();
  state.model.end_step(state.skip);
  state.optimizer.step(step.number, step.lr, state.skip, stream);
  state.parameters.cast_fp8_weights(state.model.weight_casts(), stream);
  state.mesh.meet_stages();
}

Tensor amax_history(TrainingState& state) {
  AmaxTable* amaxes = state.model.amaxes();
  return amaxes != nullptr ? amaxes->history() : Tensor();
}

void warm_up(TrainingState& state) {
  Stream& stream = state.mesh.stream();
  state.model.warm_up(state.batch.micro_batch(0), state.batch.num_micro_batches() > 1);
  state.optimizer.warm_up(stream);
  stream.synchronize();
}

void cast_weights(TrainingState& state) {
  state.parameters.cast_weights(state.model.weight_casts(), state.mesh.stream());
}

}  // namespace octavo

#include "app/training_state.h"

#include "app/fp8_report.h"
#include "kernels/reduce.h"

namespace octavo {

TrainingRank training_rank(Runtime& runtime) {
  return {.stream = runtime.stream(),
          .data_parallel = runtime.data_parallel(),
          .tensor = runtime.mesh().tensor(),
          .data_ranks = runtime.mesh().shape().data()};
}

TrainingState::TrainingState(const TrainingOptions& o, const TrainingRank& rank, Arena& arena)
    : parameters(o.layout, o.config.precision, o.sharding, LlamaMode::kTraining, rank.data_parallel, arena,
                 rank.stream),
      model({.config = o.config.model,
             .shape = {o.config.training.micro_batch_size, o.config.data.seq_len},
             .precision = o.config.precision,
             .mode = LlamaMode::kTraining,
             .fp8_stats = reports_fp8(o.config),
             .tensor = &rank.tensor,
             .tensor_chunks = o.config.parallel.tensor_parallel_chunks},
            parameters, arena, rank.stream),
      optimizer(o.config.optimizer, parameters, model.amaxes(), arena),
      batch(model.shape(), o.local_batch, o.config.model.vocab_size, o.config.data.document_mask, arena, rank.stream),
      loss(arena.allocate("loss", DType::kFloat32, {1})) {}

Arena plan_training(const TrainingOptions& options, const TrainingRank& rank) {
  Arena plan(rank.stream.device());
  const TrainingState state(options, rank, plan);
  return plan;
}

bool fits_memory(int64_t needed, int64_t available) {
  constexpr double kUsableShare = 0.92;
  return static_cast<double>(needed) <= kUsableShare * static_cast<double>(available);
}

TrainingOptions choose_training_options(const Config& config, const ParameterLayout& layout, const TrainingRank& rank,
                                        const FitsTraining& fits) {
  TrainingOptions options{.config = config,
                          .layout = layout,
                          .local_batch = config.training.global_batch_size / rank.data_ranks,
                          .sharding = {}};
  options.sharding.accumulate_unsharded = config.parallel.accumulate_unsharded;
  options.sharding.reshard_after_forward = config.parallel.reshard_after_forward == Reshard::kTrue;
  if (config.parallel.reshard_after_forward != Reshard::kAuto || rank.data_parallel.size() == 1) return options;
  // Gathering anew in backward costs time, so only where the full weights do not fit.
  options.sharding.reshard_after_forward = !fits(options);
  return options;
}

TrainingOptions training_options(const Config& config, const ParameterLayout& layout, Runtime& runtime) {
  const TrainingRank rank = training_rank(runtime);
  return choose_training_options(config, layout, rank, [&](const TrainingOptions& options) {
    bool fits = true;
    runtime.group().agree([&] { fits = fits_memory(plan_training(options, rank).used(), runtime.available_bytes()); });
    return runtime.group().all_reduce_max(fits ? 0 : 1) == 0;
  });
}

void training_step(TrainingState& state, int64_t step, double lr, Runtime& runtime) {
  Stream& stream = runtime.stream();
  Mesh& mesh = runtime.mesh();
  const int64_t micro_batches = state.batch.num_micro_batches();
  const int64_t tokens = micro_batches * state.model.shape().tokens() * mesh.data().size();
  const float scale = 1.0f / static_cast<float>(tokens);
  stream.zero(state.loss);
  for (int64_t i = 0; i < micro_batches; ++i) {
    state.model.forward_backward(state.batch.micro_batch(i), scale, i == 0, i + 1 == micro_batches);
    sum({.out = state.loss, .x = state.model.losses()}, stream);
  }
  mesh.data().all_reduce_sum(state.loss, stream, "losses");
  state.model.end_step(mesh.world());
  state.optimizer.step(step, lr, {&mesh.shard(), &mesh.tensor()}, stream);
  state.parameters.publish(state.model.weight_casts(&mesh.world()), stream);
}

void publish_weights(TrainingState& state, Runtime& runtime) {
  state.parameters.set(state.model.weight_casts(&runtime.mesh().world()), runtime.stream());
}

}  // namespace octavo

#include "app/run/training_state.h"

#include <algorithm>

#include "app/run/fp8_report.h"
#include "kernels/reduce.h"

namespace octavo {

TrainingRank training_rank(Runtime& runtime) {
  return {.stream = runtime.stream(),
          .data_parallel = runtime.data_parallel(),
          .tensor = runtime.mesh().tensor(),
          .data = runtime.mesh().data(),
          .world = runtime.mesh().world()};
}

TrainingState::TrainingState(const TrainingOptions& o, const TrainingRank& rank, Arena& arena)
    : parameters(o.layout, o.config.precision, o.sharding, LlamaMode::kTraining, rank.data_parallel, arena,
                 rank.stream),
      model({.config = o.config.model,
             .shape = {.micro_batch_size = o.config.training.micro_batch_size,
                       .seq_len = o.config.data.seq_len,
                       .document_mask = o.config.data.document_mask},
             .precision = o.config.precision,
             .mode = LlamaMode::kTraining,
             .fp8_stats = reports_fp8(o.config),
             .tensor = tensor_group_options(rank.tensor, o.config.parallel),
             .checkpointing = o.checkpointing},
            parameters, arena, rank.stream),
      optimizer(o.config.optimizer, parameters, model.amaxes(), arena),
      batch(model.shape(), o.local_batch, o.config.model.vocab_size, arena, rank.stream),
      loss(arena.allocate("loss", DType::kFloat32, {1}, Lifetime::kStep)) {}

Arena plan_training(const TrainingOptions& options, const TrainingRank& rank) {
  Arena plan(rank.stream.device());
  const TrainingState state(options, rank, plan);
  return plan;
}

void training_step(TrainingState& state, const TrainingStep& step, const TrainingRank& rank) {
  Stream& stream = rank.stream;
  const int64_t micro_batches = state.batch.num_micro_batches();
  const float scale = 1.0f / static_cast<float>(std::max<int64_t>(step.targets, 1));
  stream.zero(state.loss);
  for (int64_t i = 0; i < micro_batches; ++i) {
    state.model.forward_backward(state.batch.micro_batch(i), scale, i == 0, i + 1 == micro_batches);
    sum({.out = state.loss, .x = state.model.losses()}, stream);
  }
  rank.data.all_reduce_sum(state.loss, stream, "losses");
  state.model.end_step(rank.world);
  state.optimizer.step(step.number, step.lr, {rank.data_parallel.shard, &rank.tensor}, stream);
  state.parameters.publish(state.model.weight_casts(&rank.world), stream);
}

void publish_weights(TrainingState& state, const TrainingRank& rank) {
  state.parameters.set(state.model.weight_casts(&rank.world), rank.stream);
}

}  // namespace octavo

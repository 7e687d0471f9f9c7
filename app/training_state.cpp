#include "app/training_state.h"

#include "app/fp8_report.h"
#include "kernels/cast.h"
#include "kernels/reduce.h"

namespace octavo {

TrainingState::TrainingState(const Config& config, const ParameterLayout& layout, int64_t local_batch, Arena& arena,
                             Stream& stream)
    : parameters(layout, config.precision.compute, LlamaMode::kTraining, arena),
      model({.config = config.model,
             .shape = {config.training.micro_batch_size, config.data.seq_len},
             .precision = config.precision,
             .mode = LlamaMode::kTraining,
             .fp8_stats = reports_fp8(config)},
            layout, parameters, arena, stream),
      optimizer(config.optimizer, layout, parameters, arena),
      batch(model.shape(), local_batch, config.model.vocab_size, config.data.document_mask, arena, stream),
      loss(arena.allocate("loss", DType::kFloat32, {1})) {}

Arena plan_training(const Config& config, const ParameterLayout& layout, int64_t local_batch, Stream& stream) {
  Arena plan(stream.device());
  const TrainingState state(config, layout, local_batch, plan, stream);
  return plan;
}

void training_step(TrainingState& state, int64_t step, double lr, Communicator& communicator, Stream& stream) {
  const int64_t micro_batches = state.batch.num_micro_batches();
  const int64_t tokens = micro_batches * state.model.shape().tokens() * communicator.size();
  const float scale = 1.0f / static_cast<float>(tokens);
  stream.zero(state.loss);
  for (int64_t i = 0; i < micro_batches; ++i) {
    state.model.forward_backward(state.batch.micro_batch(i), scale, i == 0);
    sum({.out = state.loss, .x = state.model.losses()}, stream);
  }
  communicator.all_reduce_sum(state.parameters.grad, stream);
  communicator.all_reduce_sum(state.loss, stream);
  state.optimizer.step(step, lr, stream);
  state.model.end_step(communicator);
  state.model.prepare_weights();
}

void cast_weights(const ParameterBuffers& parameters, Stream& stream) {
  if (parameters.weight.dtype() == DType::kFloat32) return;  // they are the master weights
  cast({.out = parameters.weight, .x = parameters.master}, stream);
}

}  // namespace octavo

#include "app/run/saved_state.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "app/run/weights.h"
#include "core/format.h"
#include "model/parameters/pipeline_stages.h"

namespace octavo {

namespace {

// Returns the tensors that this rank and its replicas hold and no other rank writes.
std::vector<CheckpointTensor> checkpoint_tensors(TrainingState& state, bool with_history) {
  std::vector<CheckpointTensor> tensors;
  const auto add = [&](const std::string& prefix, const OptimizerState& kept) {
    for (const ParameterPiece& piece : state.parameters.pieces()) {
      const ParameterSpec& spec = *piece.spec;
      if (!spec.counts || !kept.has(spec.unit)) continue;
      tensors.push_back({.name = prefix + spec.name,
                         .shape = spec.whole_shape,
                         .begin = spec.column_offset() + piece.begin,
                         .end = spec.column_offset() + piece.end,
                         .data = kept.of(piece),
                         .columns = spec.columns(),
                         .stable = true});
    }
  };
  add("", master_state(state.parameters));
  for (const OptimizerState& kept : state.optimizer.states()) add(fmt::format("{}.", kept.name), kept);
  if (const Tensor history = amax_history(state); with_history && history.defined()) {
    tensors.push_back(
        {kAmaxHistory, {history.dim(0), history.dim(1)}, 0, history.numel(), history.view({history.numel()})});
  }
  return tensors;
}

}  // namespace

std::vector<CheckpointTensor> saved_tensors(TrainingState& state, Runtime& runtime) {
  const Communicator& replicas = runtime.mesh().replicate();  // Ranks with equal tensors.
  // One rank of each replica writes the history.
  bool with_history = true;
  for (const Axis axis : {Axis::kPipeline, Axis::kShard, Axis::kContext, Axis::kTensor}) {
    with_history = with_history && runtime.mesh().rank(axis) == 0;
  }
  return divide_tensors(checkpoint_tensors(state, with_history), replicas.rank(), replicas.size());
}

std::vector<TensorPart> loaded_parts(TrainingState& state) {
  std::vector<TensorPart> parts = parts_of(state.parameters, master_state(state.parameters), "");
  for (const OptimizerState& kept : state.optimizer.states()) {
    std::ranges::move(parts_of(state.parameters, kept, fmt::format("{}.", kept.name)), std::back_inserter(parts));
  }
  if (const Tensor history = amax_history(state); history.defined()) {
    parts.push_back({kAmaxHistory, {history.dim(0), history.dim(1)}, {}, 0, history.numel()});
  }
  return parts;
}

std::vector<TensorPart> loaded_parts(const Config& config, Runtime& runtime) {
  const ParameterLayout layout = layout_of_rank(config.model, config.parallel, runtime.mesh());
  const int64_t local_batch = config.training.global_batch_size / runtime.mesh().shape().data();
  Arena plan(runtime.stream().device());
  TrainingState state({.config = config, .layout = layout, .local_batch = local_batch, .sharding = {}}, runtime.mesh(),
                      plan);
  return loaded_parts(state);
}

void load_state(Checkpoint& checkpoint, TrainingState& state, Stream& stream) {
  try {
    load_weights(checkpoint, state.parameters, stream);
    load_optimizer(checkpoint, state.parameters, state.optimizer, stream);
    load_amax_history(checkpoint, state.model.amaxes(), stream);
  } catch (const DamagedCheckpoint&) {
    throw;
  } catch (const InputError&) {
    checkpoint.verify(loaded_parts(state));
    throw;
  }
}

}  // namespace octavo

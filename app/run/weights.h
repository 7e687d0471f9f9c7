// Sets parameters and moments on the device: from a file through a small staging buffer, or by numbers made there.
#pragma once

#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/run/training_state.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/weight_source.h"

namespace octavo {

// Returns the parts of a checkpoint that this rank's pieces of `state` are, by their names after `prefix`. The master
// weights are master_state().
std::vector<TensorPart> parts_of(const ShardedParameters& parameters, const OptimizerState& state,
                                 const std::string& prefix);

// The master weights = a random initialization, made on the stream's device. Queued.
void initialize_parameters(const ShardedParameters& parameters, uint64_t seed, Stream& stream);

// Each rank compares the checksums of what it reads. All ranks use it once none has found damage (ProcessGroup::agree).

// The master weights from `source`, that of config.model.init_from (open_same_weights), where it is not null; else a
// random initialization from training.seed.
void load_initial_weights(const Config& config, WeightSource* source, const ShardedParameters& parameters,
                          Stream& stream);

// From a checkpoint: the master weights, or what is to take their place.
void load_weights(Checkpoint& checkpoint, const ShardedParameters& parameters, Stream& stream,
                  SavedWeights which = SavedWeights::kMaster);
// The optimizer's states, behind the weights; as where a run begins where the checkpoint has none of them (an imported
// model). InputError where it has those of another type of optimizer.
void load_optimizer(Checkpoint& checkpoint, const ShardedParameters& parameters, const Optimizer& optimizer,
                    Stream& stream);
// The amax history of delayed scaling, so that tensors are scaled as when the checkpoint was saved. Where it has none,
// or one of another shape (of another recipe), tensors are scaled as in a run's first step. Null without per-tensor
// scales: nothing happens. Before the weights are cast. Waits for the copy.
void load_amax_history(Checkpoint& checkpoint, AmaxTable* amaxes, Stream& stream);

}  // namespace octavo

// Initializes weights and optimizer states on the device: from random numbers that are generated there, or from files
// through a small staging buffer. Describes the training state in checkpoints: the tensors that each rank saves, and
// the parts that it loads.
#pragma once

#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/process/runtime.h"
#include "app/run/training_state.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/weight_source.h"

namespace octavo {

// Returns the parts of a checkpoint that correspond to this rank's slices of `state`. Their names are `prefix` followed
// by the parameter's name. For the master weights, pass master_state().
std::vector<TensorPart> parts_of(const ShardedParameters& parameters, const OptimizerState& state,
                                 const std::string& prefix);

// Queues the random initialization of the master weights on the stream's device.
void initialize_parameters(const ShardedParameters& parameters, uint64_t seed, Stream& stream);

// The functions below verify the checksums of what they read on each rank. The caller ensures that no rank found damage
// before any rank uses the result (ProcessGroup::throw_on_all_ranks).

// Loads the master weights from `source`, the weights of config.model.init_from (open_same_weights). If it is null,
// initializes them randomly from training.seed.
void load_initial_weights(const Config& config, WeightSource* source, const ShardedParameters& parameters,
                          Stream& stream);

// Loads the weights `which` of a checkpoint into the master weights.
void load_weights(Checkpoint& checkpoint, const ShardedParameters& parameters, Stream& stream,
                  SavedWeights which = SavedWeights::kMaster);
// Loads the amax history of delayed scaling, so that tensors are scaled as they were when the checkpoint was saved. If
// the checkpoint has no history, or one of another shape (from another recipe), tensors are scaled as in the first step
// of a run. Does nothing if `amaxes` is null or its scaling is not delayed. Waits for the copy.
// Requires: the weights have not been cast yet.
void load_amax_history(Checkpoint& checkpoint, AmaxTable* amaxes, Stream& stream);

// Returns the tensors that this rank writes to a checkpoint: its share of the master weights, optimizer states and amax
// history.
std::vector<CheckpointTensor> saved_tensors(TrainingState& state, Runtime& runtime);

// Loads the weights, optimizer states and amax history of a checkpoint of the same model into `state`. Verifies the
// checksums of the parts that were not verified before. If the checkpoint is damaged, throws a DamagedCheckpoint even
// if it also has another fault, such as values that are not finite. The caller ensures that no rank failed
// (ProcessGroup::throw_on_all_ranks) and then casts the weights (cast_weights).
void load_state(Checkpoint& checkpoint, TrainingState& state, Stream& stream);

// Returns the parts of a checkpoint that load_state() reads on this rank. They do not depend on any key that a stage
// can change. The job may lack a memory plan (draft() in app/resolve/resolve.h).
std::vector<TensorPart> loaded_parts(const Job& job, const Mesh& mesh);

}  // namespace octavo

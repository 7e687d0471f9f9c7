// The training state in checkpoints: the tensors that a rank saves, and the parts that it loads.
#pragma once

#include <vector>

#include "app/config/config.h"
#include "app/process/runtime.h"
#include "app/run/training_state.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_writer.h"

namespace octavo {

// Returns the tensors that this rank writes of a checkpoint: its share of the master weights, the optimizer states and
// the amax history.
std::vector<CheckpointTensor> saved_tensors(TrainingState& state, Runtime& runtime);

// Reads the weights, optimizer states and amax history of a checkpoint into `state`, which must be of the same model.
// The caller makes sure that all ranks have read without an error (ProcessGroup::agree) and publishes the weights
// (publish_weights).
void load_state(Checkpoint& checkpoint, TrainingState& state, Stream& stream);

// Returns the parts of a checkpoint that load_state() reads on this rank, in what the checkpoint has of them.
std::vector<TensorPart> loaded_parts(TrainingState& state);
// Returns the same before there is a state. They do not depend on what a stage can change.
std::vector<TensorPart> loaded_parts(const Config& config, Runtime& runtime);

}  // namespace octavo

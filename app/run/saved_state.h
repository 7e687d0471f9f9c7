// The training state in checkpoints: the tensors that each rank saves, and the parts that it loads.
#pragma once

#include <vector>

#include "app/config/config.h"
#include "app/process/runtime.h"
#include "app/run/training_state.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_writer.h"

namespace octavo {

// Returns the tensors that this rank writes to a checkpoint: its share of the master weights, optimizer states and amax
// history.
std::vector<CheckpointTensor> saved_tensors(TrainingState& state, Runtime& runtime);

// Loads the weights, optimizer states and amax history of a checkpoint into `state`, which must belong to the same
// model. Verifies the checksums of the parts that were not verified before. A DamagedCheckpoint takes precedence over
// other InputErrors, such as for values that are not finite. The caller ensures that no rank failed
// (ProcessGroup::agree) and then publishes the weights (publish_weights).
void load_state(Checkpoint& checkpoint, TrainingState& state, Stream& stream);

// Returns the parts of a checkpoint that load_state() reads on this rank.
std::vector<TensorPart> loaded_parts(TrainingState& state);
// Returns the same parts before a TrainingState exists. They do not depend on any key that a stage can change.
std::vector<TensorPart> loaded_parts(const Config& config, Runtime& runtime);

}  // namespace octavo

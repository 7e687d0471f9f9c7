// Everything a training run keeps on the device, laid out in one arena, and the step that uses it.
#pragma once

#include "app/batch_buffers.h"
#include "app/config.h"
#include "model/llama.h"
#include "model/optimizer.h"
#include "parallel/communicator.h"

namespace octavo {

class TrainingState {
 public:
  // `layout` must outlive the state. `local_batch` is this rank's sequences a step.
  TrainingState(const Config& config, const ParameterLayout& layout, int64_t local_batch, Arena& arena, Stream& stream);
  // The model refers to the parameters by address.
  TrainingState(const TrainingState&) = delete;
  TrainingState& operator=(const TrainingState&) = delete;

  ParameterBuffers parameters;
  Llama model;
  Optimizer optimizer;
  BatchBuffers batch;
  Tensor loss;  // [1] float32: sum over the step's tokens of all ranks
};

// The bytes of one run: an arena that planned a TrainingState. Collective-free; allocates nothing on the device.
Arena plan_training(const Config& config, const ParameterLayout& layout, int64_t local_batch, Stream& stream);

// One optimizer step (from 1) on the batch uploaded last: forward and backward of each micro-batch, gradients summed
// over the ranks, clip, update. Queued on `stream`; state.loss and the optimizer's norm are there when it gets there.
void training_step(TrainingState& state, int64_t step, double lr, Communicator& communicator, Stream& stream);

// Fills the compute weights from the master weights, after those were set.
void cast_weights(const ParameterBuffers& parameters, Stream& stream);

}  // namespace octavo

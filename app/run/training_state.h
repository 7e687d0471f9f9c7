// Everything a training run keeps on the device, laid out in one arena, and the step that uses it.
#pragma once

#include <limits>
#include <span>
#include <vector>

#include "app/process/runtime.h"
#include "app/run/batch_buffers.h"
#include "app/run/device_scalars.h"
#include "model/llama.h"
#include "model/optimizer/optimizer.h"

namespace octavo {

// The options of a rank that decide how much memory it takes.
struct TrainingOptions {
  const Config& config;
  const ParameterLayout& layout;
  int64_t local_batch;  // this rank's sequences a step
  ShardingOptions sharding;
  ActivationCheckpointing checkpointing = {.mode = ActivationCheckpointing::Mode::kNone};  // not auto

  TrainingOptions with(const Config& other) const { return {other, layout, local_batch, sharding, checkpointing}; }
};

class TrainingState {
 public:
  // `mesh`, of a run or planned, must outlive the object.
  TrainingState(const TrainingOptions& options, const Mesh& mesh, Arena& arena);
  // The model refers to the parameters by address.
  TrainingState(const TrainingState&) = delete;
  TrainingState& operator=(const TrainingState&) = delete;

  const Mesh& mesh;
  ShardedParameters parameters;
  Llama model;
  Optimizer optimizer;
  BatchBuffers batch;
  Tensor loss;  // [datasets] float32: of each dataset of data.train, the sum over the step's targets of all ranks
  DeviceScalars scalars;
  Tensor
      skip;  // [1] float32: 1 where the step changed nothing (kernels/optimizer/skip_update.h), the same on all ranks
  // [n, 2] int32: hashes of 64 bits (kernels/math/bit_hash.h) for the check for silent corruption
  // (app/observers/corruption_check.h). Undefined without training.check_every.
  Tensor hashes;
};

// A stream of a step, and what the collectives on it gather and reduce, in words; empty where that differs.
struct TrainingStream {
  const char* name;
  const char* gathered;
  const char* reduced;
  Stream* stream;
};
// The first is that on which the model computes.
std::vector<TrainingStream> training_streams(TrainingState& state);

// The bytes of one run: an arena that planned a TrainingState. Collective-free; allocates nothing on the device.
Arena plan_training(const TrainingOptions& options, const Mesh& mesh);

struct TrainingStep {
  int64_t number = 1;  // from 1
  double lr = 0;
  int64_t targets = 1;  // that the loss counts, of all ranks: their mean is what is minimized
  // A step with a larger loss is skipped. One whose loss or gradient norm is not finite always is.
  float loss_limit = std::numeric_limits<float>::infinity();
  const Event* update_after =
      nullptr;  // Event to wait for before the weights and optimizer states are written. Null: no wait.
};

// Returns 1 / number of targets, which turns the summed loss into the mean.
float loss_scale(const TrainingStep& step);

// One optimizer step on the batch uploaded last: forward and backward of each micro-batch, gradients summed over the
// ranks, clip, update. Queued on the stream; state.loss, state.skip and the optimizer's norm are there when it gets
// there.
void training_step(TrainingState& state, const TrainingStep& step);
// The parts of training_step(). Returns the entries of a step. queue_entries() queues some of them, in order, and
// finish_step() queues the work that follows the last entry.
std::vector<StepEntry> entries_of_step(const TrainingState& state);
void queue_entries(TrainingState& state, const TrainingStep& step, std::span<const StepEntry> entries);
void finish_step(TrainingState& state, const TrainingStep& step);

// The amaxes of delayed FP8 scaling; undefined without it.
Tensor amax_history(TrainingState& state);

// Makes the weights that products read from the master weights, after those were set. A collective.
void publish_weights(TrainingState& state);

}  // namespace octavo

// Everything that a training run keeps on the device, laid out in one arena, and the training step that uses it.
#pragma once

#include <limits>
#include <span>
#include <vector>

#include "app/job/job.h"
#include "app/run/batch_buffers.h"
#include "model/llama.h"
#include "model/optimizer/optimizer.h"
#include "model/pipeline_schedule.h"

namespace octavo {

class PiecesRead;

class TrainingState {
 public:
  // The mesh may be a dry-run mesh, and the job may lack a memory plan (draft() in app/resolve/resolve.h).
  // Requires: `mesh` outlives the object.
  TrainingState(const Job& job, const Mesh& mesh, Arena& arena);
  // Not copyable, because the model refers to the parameters by address.
  TrainingState(const TrainingState&) = delete;
  TrainingState& operator=(const TrainingState&) = delete;

  const Mesh& mesh;
  const ParameterLayout layout;  // Parameters of this rank's pipeline stage.
  ShardedParameters parameters;
  Llama model;
  Optimizer optimizer;
  BatchBuffers batch;
  // [datasets] float32: for each dataset of data.train, the sum of the losses over the step's targets on all ranks.
  Tensor loss;
  // [1] float32: the sum of the z-losses over the same targets. Undefined if training.z_loss is 0.
  Tensor z_loss;
  // [1] float32: 1 if the step is skipped and changes nothing (kernels/optimizer/skip_update.h). Equal on all ranks.
  Tensor skip;
  PipelineSchedule schedule;  // Order of forward and backward, if there are several pipeline stages.
  PipelinePosition position;  // This rank's stage, and the numbers of stages and chunks.
  // [n, 2] int32: 64-bit hashes (kernels/math/bit_hash.h) of the check for silent corruption
  // (app/observers/corruption_check.h). Undefined if training.corruption_check_every is 0.
  Tensor hashes;
};

// A stream that a step uses, with its name in traces.
struct TrainingStream {
  const char* name;
  Stream* stream;
  bool between_stages = false;  // Whether it transfers data between pipeline stages.
};
// Returns the streams of a step, beginning with the compute stream of the model.
std::vector<TrainingStream> training_streams(TrainingState& state);

// Returns an arena in which a TrainingState has been laid out without allocating device memory. Runs no collectives.
Arena plan_training(const Job& job, const Mesh& mesh);

struct TrainingStep {
  int64_t number = 1;  // Number of the step, from 1.
  double lr = 0;
  int64_t targets = 1;  // Number of targets on all ranks that the loss counts. The step minimizes their mean loss.
  // A step with a larger loss is skipped. A step whose loss or gradient norm is not finite is always skipped.
  float loss_limit = std::numeric_limits<float>::infinity();
  // Point at which a save has copied the weights and optimizer states. The step changes them only after it. Null means
  // no wait.
  const PiecesRead* update_after = nullptr;
};

// Returns 1 / number of targets, which turns the summed loss into the mean.
float inverse_targets(const TrainingStep& step);

// Queues one optimizer step on the last uploaded batch: forward and backward of each micro-batch, the reduction of
// gradients over the ranks, clipping and the update. state.loss, state.skip and the optimizer's gradient norm are valid
// once the stream has reached the end of the step.
void training_step(TrainingState& state, const TrainingStep& step);
// The parts of training_step(), for callers that queue them separately. entries_of_step() returns the entries of a
// step, queue_entries() queues some of them in order, and finish_step() queues the work after the last entry.
std::vector<StepEntry> entries_of_step(const TrainingState& state);
void queue_entries(TrainingState& state, const TrainingStep& step, std::span<const StepEntry> entries);
void finish_step(TrainingState& state, const TrainingStep& step);

// Queues every kind of work of a step once and waits for it, so that algorithms are timed, plans built, GPU modules
// loaded and pipeline stages connected before the first step. Within Runtime::tune(), algorithms are timed after
// warm_up(), while no transfer of another rank is in progress. Changes no state.
void warm_up(TrainingState& state);

// Returns the amaxes of delayed FP8 scaling. Undefined without delayed scaling.
Tensor amax_history(TrainingState& state);

// Casts and distributes the weights for matmuls after the master weights were set. A collective.
void cast_weights(TrainingState& state);

}  // namespace octavo

// RecordedStep: what a training step queues, in order: the model's own forward and backward, its collectives, the
// optimizer and the casts of its weights, run on a dry-run stream (core/op_record.h) on rank 0 of the mesh.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/plan/predictor.h"
#include "core/op_record.h"

namespace octavo {

struct RecordedStep {
  // An op of the record on one stream.
  struct StepOp {
    Op op;
    std::string axis;        // of a collective, in place of op.axis
    bool of_compute = true;  // on the compute stream
    bool of_shard = false;   // its bytes are a rank's share of what the shard axis has
  };

  std::vector<OpRecord::Entry> entries;  // the index of an op is one of `ops`
  std::vector<StepOp> ops;
  std::vector<std::string> ranges;  // names, by the index of an entry that begins one
  size_t streams = 1;               // the first is the compute stream
  size_t signals = 0;
  // The entries of a micro-batch that stands for all between the first and the last.
  size_t middle_begin = 0;
  size_t middle_end = 0;
  int64_t shards = 1;  // that it was recorded on
};

// Number of micro-batches of a step that are recorded at most.
inline constexpr int64_t kFirstMiddleLast = 3;
// The micro-batches of a rank in a step.
int64_t micro_batches_of(const PredictedRun& run);

// Whether what a step queues depends on the number of shards in other ways than by the size of a rank's share: which
// rank has which matrix to orthogonalize, and the tokens' gradients of an embedding, which come from all of them.
bool depends_on_shards(const PredictedRun& run, int64_t gpus_per_node);

// Returns the mesh on which the step of a run is recorded. Several shards are recorded as those of one node, unless
// the step depends_on_shards(): `of_shard` tells what another number of shards changes. A replica is added where
// gradients are reduced in float32: collectives of one rank take no time. Without it, replicas would cost more than
// their collectives.
MeshShape recorded_mesh(const PredictedRun& run, int64_t gpus_per_node);

// Records a step that follows others: weights have yet to be gathered, and delayed scales come from a history.
RecordedStep record_step(const PredictedRun& run, int multiprocessors, int64_t gpus_per_node);

}  // namespace octavo

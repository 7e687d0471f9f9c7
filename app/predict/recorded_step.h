// RecordedStep lists everything that a training step queues, in order: the model's own forward and backward, its
// collectives, the optimizer and the casts of its weights. The step runs on a dry-run stream (core/op_record.h) on the
// first rank of the mesh, or of a pipeline stage.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/predict/predictor.h"
#include "core/op_record.h"

namespace octavo {

struct RecordedStep {
  // An op that the record contains, and the stream that it is queued on.
  struct StepOp {
    Op op;
    std::string axis;        // Axis of a collective. op.axis is empty.
    bool of_compute = true;  // Whether the op is queued on the compute stream.
    // Whether the op's bytes are the share of one rank on the shard axis, and change with the number of shards.
    bool of_shard = false;
  };

  std::vector<OpRecord::Entry> entries;  // Entries of the record. An entry of an op has its index in `ops`.
  std::vector<StepOp> ops;
  std::vector<std::string> ranges;  // Names of ranges. The entry that begins a range has the index of its name.
  size_t streams = 1;               // Number of streams. The first is the compute stream.
  size_t signals = 0;
  // Index in `entries` at which each StepEntry begins. The last element is the index at which the end of the step
  // begins. With a single pipeline stage, the two entries of a micro-batch count as one.
  std::vector<size_t> begins;
  // Entries of the micro-batch that stands for all micro-batches between the first and the last.
  size_t middle_begin = 0;
  size_t middle_end = 0;
  int64_t shards = 1;           // Number of shards that the step was recorded with.
  int64_t ranks_per_node = 8;   // Copy of Place::ranks_per_node.
  int64_t document_length = 0;  // Mean number of tokens of a document. 0 without documents.
};

// Maximum number of recorded micro-batches: the first, one in the middle, and the last.
inline constexpr int64_t kFirstMiddleLast = 3;

// Returns whether the number of shards changes more than the size of a rank's share. This is so if shards divide the
// matrices that Muon orthogonalizes, or if the embedding's gradients come from the tokens of all shards.
bool depends_on_shards(const Job& job);

// Returns the mesh on which the step of a job is recorded. The mesh is smaller than that of the run where the recorded
// ops can be scaled:
//
//   shards    8, as on one node, for any run with several shards. StepOp::of_shard marks the ops whose sizes depend on
//             the number of shards. If depends_on_shards() is true, the mesh has as many shards as the run.
//   replicas  2 for any run with several replicas, and for a run with one replica that has shards and sums gradients in
//             float32 (precision.reduce). With one replica the record has collectives over replicas too, but the
//             prediction gives them no time. So runs with one and with several replicas differ only by these
//             collectives.
MeshShape recorded_mesh(const Job& job);

// Records a step of a pipeline stage. The step is not the first, so weights must be gathered, and delayed scales are
// computed from a history. The entries of a micro-batch are recorded one after the other, whatever the schedule. With a
// `document_length` (attended_tokens), attention has the FLOPs of the scores within documents, on average.
RecordedStep record_step(const Job& job, int64_t document_length = 0, int64_t stage = 0);

}  // namespace octavo

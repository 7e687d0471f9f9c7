#include "app/predict/recorded_step.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>

#include "app/run/training_state.h"
#include "model/pipeline_schedule.h"

namespace octavo {

namespace {

constexpr int64_t kRecordedShards = 8;
// Streams of Fsdp, in the order in which Fsdp creates them.
constexpr int kShardStream = 1;
constexpr int kReplicaStream = 2;

// Indices of StepOps by the op of the record, of_compute and of_shard.
using KnownOps = std::map<std::tuple<size_t, bool, bool>, size_t>;

// Moves the entries of a record to a step. Ops of the record become separate StepOps for each kind of stream that they
// are queued on. At the end of a step (`of_end`), ops only process this rank's shard, such as the reduced gradients.
void move_entries(OpRecord& record, bool of_end, KnownOps& known, RecordedStep& step) {
  for (OpRecord::Entry entry : record.entries()) {
    if (entry.action == OpRecord::Action::kOp) {
      const Op& op = record.ops()[entry.index];
      const bool of_compute = entry.stream == 0;
      const bool of_shard = of_end || entry.stream == kReplicaStream ||
                            (entry.stream == kShardStream && std::string_view(op.axis) != "shard");
      const auto [found, is_new] = known.try_emplace({entry.index, of_compute, of_shard}, step.ops.size());
      if (is_new) {
        step.ops.push_back({.op = op, .axis = op.axis, .of_compute = of_compute, .of_shard = of_shard});
        step.ops.back().op.axis = "";
      }
      entry.index = found->second;
    }
    step.entries.push_back(entry);
  }
  step.ranges = record.ranges();
  step.streams = record.streams();
  step.signals = record.signals();
  record.clear();
}

// Returns the entries of a micro-batch. Entries that are queued together are one element.
std::vector<std::vector<StepEntry>> queued_together(PipelineSchedule schedule, const PipelinePosition& position,
                                                    int64_t micro_batch) {
  using Kind = StepEntry::Kind;
  if (position.stages == 1) return {{{Kind::kForward, micro_batch}, {Kind::kBackward, micro_batch}}};
  const bool splits = splits_backward(schedule, position);
  std::vector<std::vector<StepEntry>> entries;
  for (int64_t chunk = 0; chunk < position.chunks; ++chunk) entries.push_back({{Kind::kForward, micro_batch, chunk}});
  for (int64_t chunk = position.chunks; chunk-- > 0;) {
    entries.push_back({{splits ? Kind::kBackwardInput : Kind::kBackward, micro_batch, chunk}});
    if (splits) entries.push_back({{Kind::kBackwardWeights, micro_batch, chunk}});
  }
  return entries;
}

}  // namespace

MeshShape recorded_mesh(const Job& job) {
  MeshShape mesh = job.mesh.shape;
  const bool float32 = job.config.precision.exchanged_gradients() == DType::kFloat32;
  const bool has_replica = mesh.replicate > 1 || (mesh.shards() > 1 && float32);
  mesh.replicate = has_replica ? 2 : 1;
  if (mesh.shards() == 1 || depends_on_shards(job)) return mesh;
  mesh.shard = std::max<int64_t>(kRecordedShards * mesh.shard / mesh.shards(), 1);
  return mesh;
}

bool depends_on_shards(const Job& job) {
  if (traits(job.config.optimizer.type).matrices_alone) return true;
  const ModelConfig& model = job.config.model;
  return exchanged_table(
             {.vocab_size = local_config(model, {.rank = 0, .size = job.mesh.shape.tensor}).vocab_size,
              .hidden_size = model.hidden_size,
              .tied = model.tie_word_embeddings,
              .compute = job.config.precision.compute,
              .tokens = job.config.training.micro_batch_size * job.config.data.seq_len / job.mesh.shape.context,
              .ranks = job.mesh.shape.shards(),
              .all_to_all_load = job.mesh.shape.all_to_all_load(job.place.ranks_per_node)})
      .has_value();
}

RecordedStep record_step(const Job& job, int64_t document_length, int64_t stage) {
  // At most the first, a middle and the last micro-batch are recorded.
  const int64_t micro_batches = std::min(job.micro_batches(), kFirstMiddleLast);
  Job recorded = with_mesh(job, {recorded_mesh(job), ""});
  const MeshShape& shape = recorded.mesh.shape;
  TrainingConfig& training = recorded.config.training;
  training.global_batch_size = micro_batches * training.micro_batch_size * shape.data();
  OpRecord record;
  Watchdog watchdog(0, RankBoard(), [] {});
  Stream stream = Stream::planned(job.place.multiprocessors, &record, job.place.device);
  stream.set_deterministic(job.config.training.deterministic);
  const Mesh mesh(shape, job.mesh.shape.all_to_all_load(job.place.ranks_per_node), stream, watchdog,
                  stage * shape.ranks() / shape.pipeline);
  Arena arena(stream.device());
  TrainingState state(recorded, mesh, arena);
  state.model.end_step({});  // Ends the previous step.

  RecordedStep step;
  step.shards = shape.shards();
  step.ranks_per_node = job.place.ranks_per_node;
  KnownOps known;
  record.clear();
  for (int64_t i = 0; i < micro_batches; ++i) {
    if (i == 1) step.middle_begin = step.entries.size();
    for (const std::vector<StepEntry>& entries : queued_together(state.schedule, state.position, i)) {
      step.begins.push_back(step.entries.size());
      queue_entries(state, {.number = 2}, entries);
      move_entries(record, false, known, step);
    }
    if (i == 1) step.middle_end = step.entries.size();
  }
  if (micro_batches < kFirstMiddleLast) step.middle_end = step.middle_begin;
  step.begins.push_back(step.entries.size());
  finish_step(state, {.number = 2});
  move_entries(record, true, known, step);
  step.document_length = document_length;
  // Share of the causal scores that attention computes, 1 without documents. A token that attends to A tokens counts as
  // 2 A - 1 of seq_len scores. In causal attention these numbers sum up to seq_len^2.
  const int64_t seq_len = job.config.data.seq_len;
  const double share = (2 * attended_tokens(seq_len, document_length) - 1) / static_cast<double>(seq_len);
  for (RecordedStep::StepOp& op : step.ops) {
    if (op.op.bound == OpBound::kAttentionForward || op.op.bound == OpBound::kAttentionBackward) op.op.flops *= share;
  }
  return step;
}

}  // namespace octavo

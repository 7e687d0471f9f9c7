#include "app/plan/recorded_step.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>

#include "app/run/training_state.h"
#include "model/parameters/pipeline_stages.h"
#include "model/pipeline_schedule.h"

namespace octavo {

namespace {

constexpr int64_t kRecordedShards = 8;
// Streams of Fsdp, in the order in which Fsdp creates them.
constexpr int kShardStream = 1;
constexpr int kReplicaStream = 2;

// Moves the entries of a record to a RecordedStep. Ops of the record become separate StepOps for each kind of stream
// that they are queued on.
class Appending {
 public:
  Appending(OpRecord& record, RecordedStep& step) : record_(record), step_(step) {}

  // Moves all entries. At the end of a step (`of_end`), ops only process this rank's shard, such as the reduced
  // gradients.
  void append(bool of_end) {
    for (OpRecord::Entry entry : record_.entries()) {
      if (entry.action == OpRecord::Action::kOp) entry.index = index_of(entry, of_end);
      step_.entries.push_back(entry);
    }
    step_.ranges = record_.ranges();
    step_.streams = record_.streams();
    step_.signals = record_.signals();
    record_.clear();
  }

 private:
  size_t index_of(const OpRecord::Entry& entry, bool of_end) {
    const Op& op = record_.ops()[entry.index];
    const bool of_compute = entry.stream == 0;
    const bool of_shard = of_end || entry.stream == kReplicaStream ||
                          (entry.stream == kShardStream && std::string_view(op.axis) != "shard");
    const auto [known, is_new] = known_.try_emplace({entry.index, of_compute, of_shard}, step_.ops.size());
    if (is_new) {
      step_.ops.push_back({.op = op, .axis = op.axis, .of_compute = of_compute, .of_shard = of_shard});
      step_.ops.back().op.axis = "";
    }
    return known->second;
  }

  OpRecord& record_;
  RecordedStep& step_;
  std::map<std::tuple<size_t, bool, bool>, size_t> known_;  // Indices of StepOps by op, of_compute and of_shard.
};

// Returns the entries of a micro-batch. Those that are queued together are one element.
std::vector<std::vector<StepEntry>> queued_together(PipelineSchedule schedule, const PipelinePlace& place,
                                                    int64_t micro_batch) {
  using Kind = StepEntry::Kind;
  if (place.stages == 1) return {{{Kind::kForward, micro_batch}, {Kind::kBackward, micro_batch}}};
  const bool splits = splits_backward(schedule, place);
  std::vector<std::vector<StepEntry>> entries;
  for (int64_t chunk = 0; chunk < place.chunks; ++chunk) entries.push_back({{Kind::kForward, micro_batch, chunk}});
  for (int64_t chunk = place.chunks; chunk-- > 0;) {
    entries.push_back({{splits ? Kind::kBackwardInput : Kind::kBackward, micro_batch, chunk}});
    if (splits) entries.push_back({{Kind::kBackwardWeights, micro_batch, chunk}});
  }
  return entries;
}

// Returns the job whose step is recorded: on the recorded mesh, and with at most the first, a middle and the last
// micro-batch.
Job recorded_job(const Job& job) {
  Job recorded = with_mesh(job, {recorded_mesh(job), ""});
  TrainingConfig& training = recorded.config.training;
  const int64_t micro_batches = std::min(job.micro_batches(), kFirstMiddleLast);
  training.global_batch_size = micro_batches * training.micro_batch_size * recorded.mesh.shape.data();
  return recorded;
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
             {.vocab_size = model.vocab_size / job.mesh.shape.tensor,
              .hidden_size = model.hidden_size,
              .tied = model.tie_word_embeddings,
              .compute = job.config.precision.compute,
              .tokens = job.config.training.micro_batch_size * job.config.data.seq_len / job.mesh.shape.context,
              .ranks = job.mesh.shape.shards(),
              .all_to_all_load = job.mesh.shape.all_to_all_load(job.place.ranks_per_node)})
      .has_value();
}

RecordedStep record_step(const Job& job, int64_t document_length, int64_t stage) {
  const Job recorded = recorded_job(job);
  const MeshShape& shape = recorded.mesh.shape;
  const int64_t micro_batches = recorded.micro_batches();
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
  Appending appending(record, step);
  record.clear();
  for (int64_t i = 0; i < micro_batches; ++i) {
    if (i == 1) step.middle_begin = step.entries.size();
    for (const std::vector<StepEntry>& entries : queued_together(state.schedule, state.place, i)) {
      step.begins.push_back(step.entries.size());
      queue_entries(state, {.number = 2}, entries);
      appending.append(false);
    }
    if (i == 1) step.middle_end = step.entries.size();
  }
  if (micro_batches < kFirstMiddleLast) step.middle_end = step.middle_begin;
  step.begins.push_back(step.entries.size());
  finish_step(state, {.number = 2});
  appending.append(true);
  step.document_length = document_length;
  // Share of the causal scores that attention computes, 1 without documents. A token that attends to A tokens counts as
  // 2 A - 1 of seq_len scores, as in causal attention, where these sum up to seq_len^2.
  const int64_t seq_len = job.config.data.seq_len;
  const double share = (2 * attended_tokens(seq_len, document_length) - 1) / static_cast<double>(seq_len);
  for (RecordedStep::StepOp& op : step.ops) {
    if (op.op.bound == OpBound::kAttentionForward || op.op.bound == OpBound::kAttentionBackward) op.op.flops *= share;
  }
  return step;
}

}  // namespace octavo

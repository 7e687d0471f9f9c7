#include "app/plan/predictor.h"

#include <algorithm>
#include <utility>

#include "app/plan/predictor_rates.h"
#include "app/plan/recorded_step.h"
#include "app/plan/step_clock.h"
#include "model/architecture/block_spec.h"
#include "model/block/attention.h"
#include "model/parameters/pipeline_stages.h"

namespace octavo {

namespace {

double as_double(int64_t value) { return static_cast<double>(value); }

// Returns the time of an entry of a step, of which the first micro-batch, one in the middle and the last are recorded.
double entry_seconds(const StepClock::Times& times, const StepEntry& entry, int64_t micro_batches, int64_t chunks) {
  using Kind = StepEntry::Kind;
  const int64_t recorded = std::min(micro_batches, kFirstMiddleLast);
  const int64_t per_micro_batch = std::ssize(times.entries_s) / recorded;
  const bool is_last = entry.micro_batch + 1 == micro_batches;
  const int64_t micro_batch = is_last ? recorded - 1 : std::min<int64_t>(entry.micro_batch, 1);
  // The forwards of all chunks are recorded first, and then the backwards in the opposite order. Weight gradients,
  // which only stages of one chunk separate, come last.
  int64_t place = entry.kind == Kind::kForward ? entry.chunk : 2 * chunks - 1 - entry.chunk;
  if (entry.kind == Kind::kBackwardWeights) ++place;
  return times.entries_s[static_cast<size_t>(micro_batch * per_micro_batch + place)];
}

// Returns for each pipeline stage the first stage that takes as long.
std::vector<size_t> equal_stages(const PredictedRun& run) {
  ActivationCheckpointing checkpointing = run.checkpointing;
  if (checkpointing.mode == ActivationCheckpointing::Mode::kAuto) {
    checkpointing.mode = ActivationCheckpointing::Mode::kNone;
  }
  const ModelConfig& model = run.config.model;
  return first_equal_stages(pipeline_stages(model, run.config.parallel, run.mesh.pipeline), model, run.config.precision,
                            checkpointing);
}

// Returns the times of the pipeline stages. The stages meet after the entries of a step and at its end, so the slowest
// stage decides each of the two parts.
std::vector<StagePrediction> predict_stages(const PredictedRun& run, std::span<const StepClock::Times> times,
                                            double transfer_s) {
  const int64_t micro_batches = micro_batches_of(run);
  const int64_t chunks = run.config.parallel.pipeline_chunks;
  const PipelineTimes pipeline =
      pipeline_times({.schedule = run.config.parallel.pipeline_schedule,
                      .stages = run.mesh.pipeline,
                      .chunks = chunks,
                      .micro_batches = micro_batches,
                      .seconds =
                          [&](int64_t stage, const StepEntry& entry) {
                            return entry_seconds(times[static_cast<size_t>(stage)], entry, micro_batches, chunks);
                          },
                      .transfer_s = transfer_s});
  double end_s = 0;
  for (const StepClock::Times& stage : times) end_s = std::max(end_s, stage.end_s);
  const std::vector<StageLayers> layers = pipeline_stages(run.config.model, run.config.parallel, run.mesh.pipeline);
  std::vector<StagePrediction> stages;
  for (size_t i = 0; i < times.size(); ++i) {
    const double busy_s = pipeline.busy_s[i] + times[i].end_s;
    int64_t blocks = 0;
    for (const auto& [begin, end] : layers[i]) blocks += end - begin;
    stages.push_back({.blocks = blocks, .busy_s = busy_s, .waiting_s = pipeline.end_s + end_s - busy_s});
  }
  return stages;
}

}  // namespace

const char* cost_kind_name(CostKind kind) {
  constexpr const char* kNames[] = {"matmuls",
                                    "attention",
                                    "memory-bound ops",
                                    "optimizer",
                                    "exposed communication",
                                    "waiting for other pipeline stages"};
  return kNames[static_cast<size_t>(kind)];
}

double StepPrediction::seconds(CostKind kind) const {
  double sum = 0;
  for (const StepCost& cost : costs) sum += cost.kind == kind ? cost.seconds : 0;
  return sum;
}

int64_t StepPrediction::slowest_stage() const {
  const auto less = [](const StagePrediction& a, const StagePrediction& b) { return a.busy_s < b.busy_s; };
  return std::max_element(stages.begin(), stages.end(), less) - stages.begin();
}

double StepPrediction::bubble() const {
  double waiting_s = 0;
  for (const StagePrediction& stage : stages) waiting_s += stage.waiting_s;
  return waiting_s / step_s / static_cast<double>(stages.size());
}

std::vector<TokenFlops> flops_by_part(const ModelConfig& model, int64_t seq_len) {
  const double layers = as_double(model.num_layers);
  std::vector<TokenFlops> parts;
  for (const LinearSpec& linear : block_linears(model)) {
    parts.push_back({linear.names.forward, 6 * layers * as_double(linear.shape.in) * as_double(linear.shape.out)});
  }
  const SdpaShape attention = sdpa_shape(model, {1, seq_len, 1});
  const double causal = attention_forward_flops(attention) + attention_backward_flops(attention);
  parts.push_back({"attention", layers * causal / as_double(seq_len)});
  parts.push_back({"lm_head", 6 * as_double(model.hidden_size) * as_double(model.vocab_size)});
  return parts;
}

double attended_tokens(const PredictedRun& run) {
  const int64_t seq_len = run.config.data.seq_len;
  return run.document_length > 0 ? document_attended_tokens(seq_len, run.document_length)
                                 : causal_attended_tokens(seq_len);
}

Predictor::Predictor(const MachineRates& machine, const Cluster& cluster) : machine_(machine), cluster_(cluster) {}
Predictor::~Predictor() = default;

const StepClock& Predictor::clock(const PredictedRun& run, int64_t stage) {
  const auto& [config, mesh, sharding, checkpointing, document_length] = run;
  const Key key{recorded_mesh(run, cluster_.gpus_per_node),
                mesh.all_to_all_load(cluster_.gpus_per_node),
                config.training.micro_batch_size,
                std::min(micro_batches_of(run), kFirstMiddleLast),
                sharding.reshard_after_forward,
                sharding.accumulate_unsharded,
                checkpointing.mode,
                checkpointing.ratio,
                document_length,
                config.parallel.pipeline_schedule,
                config.parallel.pipeline_chunks,
                stage};
  std::unique_ptr<StepClock>& clock = clocks_[key];
  if (!clock) {
    const RecordedStep step =
        record_step(run, static_cast<int>(machine_.multiprocessors), cluster_.gpus_per_node, stage);
    clock = std::make_unique<StepClock>(step, machine_, cluster_);
  }
  return *clock;
}

StepPrediction Predictor::predict(const PredictedRun& run) {
  const auto& [config, mesh, sharding, checkpointing, document_length] = run;
  std::vector<StepClock::Times> times;
  for (const size_t stage : equal_stages(run)) {
    times.push_back(stage < times.size() ? times[stage]
                                         : clock(run, static_cast<int64_t>(stage)).run(mesh, micro_batches_of(run)));
  }
  StepPrediction p;
  if (mesh.pipeline > 1) {
    p.stage_transfer_s = clock(run, 0).stage_transfer_s(mesh);
    p.stages = predict_stages(run, times, p.stage_transfer_s);
  }
  const size_t decides = p.stages.empty() ? 0 : static_cast<size_t>(p.slowest_stage());
  p.costs = std::move(times[decides].costs);
  p.communication_s = times[decides].communication_s;
  if (!p.stages.empty()) {
    p.costs.push_back(
        {.name = cost_kind_name(CostKind::kStages), .kind = CostKind::kStages, .seconds = p.stages[decides].waiting_s});
  }
  std::stable_sort(p.costs.begin(), p.costs.end(),
                   [](const StepCost& a, const StepCost& b) { return a.seconds > b.seconds; });
  for (const StepCost& cost : p.costs) p.step_s += cost.seconds;
  p.floor_s = p.seconds(CostKind::kProduct) + p.seconds(CostKind::kAttention);
  p.tokens_per_step = as_double(config.training.global_batch_size) * as_double(config.data.seq_len);
  p.wps = p.tokens_per_step / p.step_s / as_double(mesh.ranks());
  const ModelFlops flops = model_flops(config.model, config.precision, config.data.seq_len, attended_tokens(run));
  p.flops_per_token = flops.palm;
  p.use = utilization_of(flops, p.wps);
  p.bound = *std::max_element(std::begin(kCostKinds), std::end(kCostKinds),
                              [&](CostKind a, CostKind b) { return p.seconds(a) < p.seconds(b); });
  return p;
}

StepPrediction predict_step(const PredictedRun& run, const MachineRates& machine, const Cluster& cluster) {
  return Predictor(machine, cluster).predict(run);
}

}  // namespace octavo

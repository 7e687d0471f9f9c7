#include "app/predict/predictor.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "app/predict/recorded_step.h"
#include "app/predict/step_clock.h"
#include "core/error.h"
#include "core/format.h"
#include "model/architecture/block_spec.h"
#include "model/block/attention.h"
#include "model/parameters/pipeline_stages.h"

namespace octavo {

namespace {

// Returns the measured runs of all machines together: those with pipeline stages if `mesh` has stages, or else those
// without. Runs with stages are predicted by a simulation, whose errors say nothing about other runs.
MeasuredRuns runs_like(const MeshShape& mesh, std::span<const MachineRates> machines) {
  MeasuredRuns all;
  for (const MachineRates& machine : machines) {
    for (const MeasuredRuns& some : machine.measured_runs) {
      if ((some.largest_mesh.pipeline > 1) != (mesh.pipeline > 1)) continue;
      all.smallest_error = all.runs == 0 ? some.smallest_error : std::min(all.smallest_error, some.smallest_error);
      all.largest_error = all.runs == 0 ? some.largest_error : std::max(all.largest_error, some.largest_error);
      all.runs += some.runs;
      all.gpus = std::max(all.gpus, some.gpus);
      for (const MeshAxis& axis : kMeshAxes) {
        all.largest_mesh.*axis.size = std::max(all.largest_mesh.*axis.size, some.largest_mesh.*axis.size);
      }
    }
  }
  return all;
}

// Time of a kernel's launch and of its first and last waves. The times of matmuls and attention were fitted to the 1.8B
// model with 1 x 1024 tokens (docs/benchmarks/one-gpu.md), and that of memory-bound ops is assumed.
constexpr double kMatmulOverhead_s = 5e-6;
constexpr double kMemoryOverhead_s = 2e-6;
// Cost of attention on a GPU. in_step is the rate inside of a step divided by the rate alone, measured on the H200: 626
// of 746 TFLOP/s forward and 493 of 550 backward. With documents, the FLOPs take `flops` times as long as without a
// mask, and moving the inputs and outputs `passes` times takes additional time. A document moves as much data as if it
// had kTokensOfPartialTiles more tokens. `flops`, `passes` and kTokensOfPartialTiles were fitted to FlashAttention
// (kernels/flash_attention/flash_documents.h) in steps of the 1.8B on an H100 with documents of 64 to 4,096 tokens on
// average (docs/benchmarks/attention.md). So the factor 0.85 was not measured.
struct AttentionCost {
  double overhead_s, in_step, flops, passes;
};
constexpr AttentionCost kAttentionForward{12e-6, 0.84, 1, 1};
constexpr AttentionCost kAttentionBackward{40e-6, 0.90, 0.85, 3.4};
constexpr double kTokensOfPartialTiles = 85;
// Share of a large copy's bandwidth that memory-bound ops reach: 2,670 to 2,900 of 3,004 GB/s on an H100.
constexpr double kMemoryShare = 0.92;
// Most bytes per second that memory-bound ops move if they also cast their result to FP8: 2,810 to 2,900 GB/s on an
// H100, and 2,730 GB/s on an H200, whose memory is faster.
constexpr double kCastingBytes = 2.8e12;
// Memory-bound ops whose properties differ from the default.
constexpr auto kMemoryOps = std::to_array<MemoryOp>({
    {.name = "adamw", .kind = CostKind::kOptimizer},
    {.name = "ema", .kind = CostKind::kOptimizer},
    {.name = "muon_momentum", .kind = CostKind::kOptimizer},
    {.name = "muon_rows", .kind = CostKind::kOptimizer},
    {.name = "muon_polynomial", .kind = CostKind::kOptimizer},
    {.name = "muon_update", .kind = CostKind::kOptimizer},
    {.name = "sum_of_squares", .kind = CostKind::kOptimizer},
    {.name = "cross_entropy", .share = 0.75},
    {.name = "cross_entropy_stats", .share = 0.75},
    {.name = "cross_entropy_parallel", .share = 0.75},
});
constexpr MemoryOp kOtherOp;

double squared_distance(const MatmulSize& p, const MatmulSize& size) {
  const auto octaves = [](int64_t a, int64_t b) { return std::log2(static_cast<double>(a) / static_cast<double>(b)); };
  const double m = octaves(p.m, size.m);
  const double n = octaves(p.n, size.n);
  const double k = octaves(p.k, size.k);
  return m * m + n * n + k * k;
}

double matmul_seconds(const MachineRates& machine, const Op& op) {
  const MatmulSize size{op.m, op.n, op.k};
  const double overhead = machine.multiprocessors > 0 ? kMatmulOverhead_s : 0;
  return size.flops() / matmul_rate(machine, op.precision, op.fast_accumulation, size) + overhead;
}

// Returns the time of attention. `flops_per_s` is the rate outside of a step and without documents. document_length is
// the mean number of tokens of a document, or 0 without documents. CPUs compute only the scores within documents.
double attention_seconds(const MachineRates& machine, const Op& op, double flops_per_s, const AttentionCost& cost,
                         int64_t document_length) {
  if (machine.multiprocessors == 0) return op.flops / flops_per_s;
  const double seconds = op.flops / flops_per_s / cost.in_step;
  if (document_length == 0) return seconds + cost.overhead_s;
  const double padding = 1 + kTokensOfPartialTiles / static_cast<double>(document_length);
  const double bytes_per_s = machine.memory_bytes_per_s * kMemoryShare;
  return cost.flops * seconds + cost.passes * padding * op.bytes / bytes_per_s + cost.overhead_s;
}

double as_double(int64_t value) { return static_cast<double>(value); }

// Returns the time of an entry of a step. The record has the first micro-batch, one in the middle and the last.
double entry_seconds(const StepClock::Times& times, const StepEntry& entry, int64_t micro_batches, int64_t chunks) {
  using Kind = StepEntry::Kind;
  const int64_t recorded = std::min(micro_batches, kFirstMiddleLast);
  const int64_t per_micro_batch = std::ssize(times.entries_s) / recorded;
  const bool is_last = entry.micro_batch + 1 == micro_batches;
  const int64_t micro_batch = is_last ? recorded - 1 : std::min<int64_t>(entry.micro_batch, 1);
  // The forwards of all chunks are recorded first, and then the backwards in the opposite order. Weight gradients come
  // last, if they are separate, which is so only for stages with one chunk.
  int64_t place = entry.kind == Kind::kForward ? entry.chunk : 2 * chunks - 1 - entry.chunk;
  if (entry.kind == Kind::kBackwardWeights) ++place;
  return times.entries_s[static_cast<size_t>(micro_batch * per_micro_batch + place)];
}

// Returns the times of the pipeline stages. The stages wait for each other after the entries of a step and at its end,
// so the slowest stage decides the time of each of these two parts.
std::vector<StagePrediction> predict_stages(const Job& job, std::span<const StepClock::Times> times,
                                            double transfer_s) {
  const int64_t micro_batches = job.micro_batches();
  const int64_t chunks = job.config.parallel.pipeline_chunks;
  const PipelineTimes pipeline =
      pipeline_times({.schedule = job.config.parallel.pipeline_schedule,
                      .stages = job.mesh.shape.pipeline,
                      .chunks = chunks,
                      .micro_batches = micro_batches,
                      .seconds =
                          [&](int64_t stage, const StepEntry& entry) {
                            return entry_seconds(times[static_cast<size_t>(stage)], entry, micro_batches, chunks);
                          },
                      .transfer_s = transfer_s});
  double end_s = 0;
  for (const StepClock::Times& stage : times) end_s = std::max(end_s, stage.end_s);
  const std::vector<StageLayers> layers =
      pipeline_stages(job.config.model, job.config.parallel, job.mesh.shape.pipeline);
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
  return std::ranges::max_element(stages, {}, &StagePrediction::busy_s) - stages.begin();
}

double StepPrediction::bubble() const {
  double waiting_s = 0;
  for (const StagePrediction& stage : stages) waiting_s += stage.waiting_s;
  return waiting_s / step_s / static_cast<double>(stages.size());
}

std::vector<std::pair<std::string, double>> flops_by_part(const ModelConfig& model, int64_t seq_len) {
  const double layers = as_double(model.num_layers);
  std::vector<std::pair<std::string, double>> parts;
  for (const LinearSpec& linear : block_linears(model)) {
    parts.emplace_back(linear.names.forward, 6 * layers * as_double(linear.shape.in) * as_double(linear.shape.out));
  }
  const SdpaShape attention = sdpa_shape(model, {1, seq_len, 1});
  const double causal = attention_forward_flops(attention) + attention_backward_flops(attention);
  parts.emplace_back("attention", layers * causal / as_double(seq_len));
  parts.emplace_back("lm_head", 6 * as_double(model.hidden_size) * as_double(model.vocab_size));
  return parts;
}

double attended_tokens(int64_t seq_len, int64_t document_length) {
  return document_length > 0 ? document_attended_tokens(seq_len, document_length) : causal_attended_tokens(seq_len);
}

Predictor::Predictor(const MachineRates& machine, const NetworkRates& network, int64_t document_length)
    : machine_(machine), network_(network), document_length_(document_length) {}
Predictor::~Predictor() = default;

const StepClock& Predictor::clock(const Job& job, int64_t stage) {
  const Config& config = job.config;
  const ShardingOptions sharding = job.sharding();
  const Key key{recorded_mesh(job),
                job.mesh.shape.all_to_all_load(job.place.ranks_per_node),
                config.training.micro_batch_size,
                std::min(job.micro_batches(), kFirstMiddleLast),
                sharding.reshard_after_forward,
                sharding.accumulate_unsharded,
                job.layers(),
                config.parallel.pipeline_schedule,
                config.parallel.pipeline_chunks,
                stage};
  std::unique_ptr<StepClock>& clock = clocks_[key];
  if (!clock) clock = std::make_unique<StepClock>(record_step(job, document_length_, stage), machine_, network_);
  return *clock;
}

StepPrediction Predictor::predict(const Job& job) {
  const Config& config = job.config;
  const MeshShape& mesh = job.mesh.shape;
  const std::vector<StageLayers> stages = pipeline_stages(config.model, config.parallel, mesh.pipeline);
  std::vector<StepClock::Times> times;
  for (const size_t stage : first_equal_stages(stages, job.layers())) {
    times.push_back(stage < times.size() ? times[stage]
                                         : clock(job, static_cast<int64_t>(stage)).run(mesh, job.micro_batches()));
  }
  StepPrediction p;
  if (mesh.pipeline > 1) {
    p.stage_transfer_s = clock(job, 0).stage_transfer_s(mesh);
    p.stages = predict_stages(job, times, p.stage_transfer_s);
  }
  const size_t decides = p.stages.empty() ? 0 : static_cast<size_t>(p.slowest_stage());
  p.costs = std::move(times[decides].costs);
  p.communication_s = times[decides].communication_s;
  if (!p.stages.empty()) {
    p.costs.push_back(
        {.name = cost_kind_name(CostKind::kStages), .kind = CostKind::kStages, .seconds = p.stages[decides].waiting_s});
  }
  std::ranges::stable_sort(p.costs, std::greater(), &StepCost::seconds);
  for (const StepCost& cost : p.costs) p.step_s += cost.seconds;
  p.floor_s = p.seconds(CostKind::kMatmul) + p.seconds(CostKind::kAttention);
  const double tokens = as_double(config.training.global_batch_size) * as_double(config.data.seq_len);
  p.wps = tokens / p.step_s / as_double(mesh.ranks());
  const ModelFlops flops = model_flops(config.model, config.precision, config.data.seq_len,
                                       attended_tokens(config.data.seq_len, document_length_));
  p.use = utilization_of(flops, p.wps);
  p.bound = *std::ranges::max_element(kCostKinds, {}, [&](CostKind kind) { return p.seconds(kind); });
  return p;
}

StepPrediction predict_step(const Job& job, const MachineRates& machine, const NetworkRates& network,
                            int64_t document_length) {
  return Predictor(machine, network, document_length).predict(job);
}

double matmul_rate(const MachineRates& machine, const std::string& precision, bool fast_accumulation,
                   const MatmulSize& size) {
  const auto known = machine.matmul_flops.find(precision);
  CHECK_INPUT(known != machine.matmul_flops.end(), "the machine file of {} has no rate of {} matmuls", machine.name,
              precision);
  constexpr double kSame = 1e-6;  // Keeps the weight finite if the shape equals a measured one.
  double weights = 0;
  double sum = 0;
  for (const MatmulRate& p : machine.matmuls) {
    if (p.precision != precision || p.fast_accumulation != fast_accumulation) continue;
    const double distance = squared_distance(p.size, size) + kSame;
    const double weight = 1 / (distance * distance);
    weights += weight;
    sum += weight * p.flops;
  }
  return weights > 0 ? sum / weights : known->second;
}

double attention_forward_flops(const SdpaShape& s) {
  return 2 * as_double(s.batch) * as_double(s.num_heads) * as_double(s.seq_len) * as_double(s.seq_len) *
         as_double(s.head_dim);
}

double op_seconds(const MachineRates& machine, const Op& op, int64_t document_length) {
  switch (op.bound) {
    case OpBound::kMatmul:
    case OpBound::kFp8Matmul:
      return matmul_seconds(machine, op);
    case OpBound::kAttentionForward:
      return attention_seconds(machine, op, machine.attention.forward_flops, kAttentionForward, document_length);
    case OpBound::kAttentionBackward:
      return attention_seconds(machine, op, machine.attention.backward_flops, kAttentionBackward, document_length);
    case OpBound::kMemory: {
      double bytes_per_s = machine.memory_bytes_per_s * kMemoryShare * memory_op(op.name).share;
      if (op.casts && machine.multiprocessors > 0) bytes_per_s = std::min(bytes_per_s, kCastingBytes);
      return op.bytes / bytes_per_s + (op.bytes > 0 ? kMemoryOverhead_s : 0);
    }
    case OpBound::kCommunication:
      return 0;
  }
  return 0;
}

const MemoryOp& memory_op(std::string_view name) {
  const auto* found = std::ranges::find(kMemoryOps, name, &MemoryOp::name);
  return found != kMemoryOps.end() ? *found : kOtherOp;
}

PredictionRange prediction_range(double wps, const MachineRates& machine, const MeshShape& mesh, int64_t gpus_per_node,
                                 std::span<const MachineRates> known) {
  PredictionRange range{.measured = runs_like(mesh, {&machine, 1}), .not_measured = {}};
  if (range.measured.runs == 0) {
    range.measured = runs_like(mesh, known);
    range.not_measured.push_back(fmt::format("machine {}", machine.name));
  }
  const MeasuredRuns& measured = range.measured;
  range.low_wps = wps / (1 + measured.largest_error);
  range.high_wps = wps / (1 + measured.smallest_error);
  if (mesh.ranks() > measured.gpus) range.not_measured.push_back(fmt::format("more than {} GPUs", measured.gpus));
  if (mesh.ranks() > gpus_per_node) range.not_measured.emplace_back("several nodes");
  for (const MeshAxis& axis : kMeshAxes) {
    const int64_t size = mesh.*axis.size;
    if (axis.size != &MeshShape::shard && size > measured.largest_mesh.*axis.size) {
      range.not_measured.push_back(fmt::format("{} {}", axis.name, size));
    }
  }
  return range;
}

std::optional<PredictionRange> prediction_range(double wps, const Job& job, const MachineRates& machine,
                                                int64_t document_length) {
  if (machine.device == "cpu") return std::nullopt;
  PredictionRange range = prediction_range(wps, machine, job.mesh.shape, job.place.ranks_per_node, known_machines());
  const bool has_documents = std::ranges::any_of(machine.measured_runs, &MeasuredRuns::documents);
  if (document_length > 0 && !has_documents) range.not_measured.emplace_back("documents");
  if (job.config.optimizer.type == OptimizerType::kMuon) range.not_measured.emplace_back("Muon");
  return range;
}

std::string describe(const PredictionRange& range) {
  const auto percent = [](double error) {
    return fmt::format("{:.1f}% too {}", std::abs(100 * error), error < 0 ? "slow" : "fast");
  };
  const MeasuredRuns& measured = range.measured;
  const std::string wps = fmt::format("{} to {} wps", with_thousands_separators(std::llround(range.low_wps)),
                                      with_thousands_separators(std::llround(range.high_wps)));
  const std::string runs =
      fmt::format("{} measured runs on up to {} GPUs were predicted {} to {}", measured.runs, measured.gpus,
                  percent(measured.smallest_error), percent(measured.largest_error));
  if (range.not_measured.empty()) return fmt::format("{}, because {}", wps, runs);
  return fmt::format("unknown, not measured: {}; {}, which would give {}", fmt::join(range.not_measured, ", "), runs,
                     wps);
}

}  // namespace octavo

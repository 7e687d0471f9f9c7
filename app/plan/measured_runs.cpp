#include "app/plan/measured_runs.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/format.h"

namespace octavo {

namespace {

// Reports in docs/benchmarks.
constexpr std::string_view kSharded = "2026-11-20-sharded";
constexpr std::string_view kMemory = "2026-11-21-memory";
constexpr std::string_view kRecomputed = "2026-11-21-activation-checkpointing";
constexpr std::string_view kTensor = "2026-11-21-tensor-parallel";
constexpr std::string_view kAttention = "2026-11-23-attention";
constexpr std::string_view kTwoH200s = "2026-11-24-two-h200";
constexpr std::string_view kPyTorch = "2026-11-25-pytorch";
constexpr std::string_view kStructure = "2026-11-25-structure";
constexpr std::string_view kFourH200s = "2026-11-26-four-h200";

constexpr MeshShape kOne;
constexpr MeshShape kTwo{.shard = 2};
constexpr MeshShape kReplicas{.replicate = 2};
constexpr MeshShape kFour{.shard = 4};
constexpr MeshShape kTwoStages{.shard = 2, .pipeline = 2};
constexpr MeshShape kFourStages{.pipeline = 4};
constexpr MeshShape kTensorTwo{.tensor = 2};
constexpr MeshShape kTensorFour{.tensor = 4};

constexpr std::string_view k1B = "llama3_1b_1gpu.yaml";
constexpr std::string_view k2B = "llama3_1.8b_1gpu.yaml";
constexpr std::string_view k8B = "llama3_8b_8gpu.yaml";
constexpr std::string_view k70B = "llama3_70b_8gpu.yaml";

// Returns tokens per second per GPU for a step of `ms` milliseconds with `tokens` tokens per GPU.
constexpr double from_ms(double ms, double tokens) { return tokens / ms * 1e3; }

constexpr MeasuredRun kRuns[] = {
    {"h200", kOne, k2B, "training.global_batch_size=2 precision.linear=bfloat16", 46136, 45409, kAttention},
    {"h200", kOne, k2B, "training.global_batch_size=2 precision.linear=fp8_tensorwise", 57710, 55464, kAttention},
    {"h200", kOne, k2B, "training.global_batch_size=2 precision.linear=fp8_delayed", 59759, 57311, kAttention},
    {"h200", kOne, k2B, "training.global_batch_size=2 precision.linear=fp8_rowwise", 55630, 53681, kAttention},
    {"h200", kOne, k2B, "training.global_batch_size=2 precision.linear=fp8_blockwise", 53818, 52435, kAttention},
    {"h200", kOne, k2B, "training.global_batch_size=16 precision.linear=fp8_tensorwise", 60880, 58952, kAttention},
    {"h200", kOne, k8B, "training.global_batch_size=2 optimizer.state_dtype=float8", 15666, 14991, kAttention},
    {"h200", kOne, k8B, "training.global_batch_size=8 optimizer.state_dtype=float8", 16451, 15662, kAttention},
    {"h200", kTwo, k2B, "training.global_batch_size=4 precision.linear=fp8_tensorwise", 55712, 56039, kTwoH200s},
    {"h200", kReplicas, k2B,
     "training.global_batch_size=4 precision.linear=fp8_tensorwise parallel.data_parallel_shard=1", 54088, 54455,
     kTwoH200s},
    {"h200", kTwo, k8B, "training.global_batch_size=4 precision.linear=bfloat16", 11158, 11214, kTwoH200s},
    {"h200", kTwo, k8B, "training.global_batch_size=4 precision.linear=fp8_tensorwise", 16059, 15756, kTwoH200s},
    {"h200", kTwo, k8B, "training.global_batch_size=16 precision.linear=fp8_tensorwise", 16549, 16387, kTwoH200s},
    {"h200", kTwo, k8B, "training.global_batch_size=4 precision.linear=fp8_delayed", 16291, 16135, kTwoH200s},
    {"h200", kTwo, k8B, "training.global_batch_size=4 optimizer.state_dtype=float8", 16062, 15920, kTwoH200s},
    {"h200", kTwo, k70B, "training.global_batch_size=2 model.num_layers=18 optimizer.state_dtype=float8", 7666, 8123,
     kTwoH200s},
    {"h200", kTwo, k2B, "training.global_batch_size=4 precision.linear=bfloat16", 42561, 43294, kMemory, true},
    {"h200", kTwo, k2B, "training.global_batch_size=4 precision.linear=fp8_tensorwise", 53817, 52553, kMemory, true},
    {"h200", kTwo, k8B, "training.global_batch_size=4 precision.linear=bfloat16", 10990, 10830, kMemory, true},
    {"h200", kTwo, k8B, "training.global_batch_size=4 precision.linear=fp8_tensorwise", 15752, 15009, kMemory, true},
    {"h200", kTwo, k8B, "training.global_batch_size=4 precision.linear=fp8_delayed", 15769, 15353, kMemory, true},
    {"h200", kTwo, k8B,
     "training.global_batch_size=4 parallel.reshard_after_forward=true activation_checkpointing.mode=none",
     from_ms(1059.0, 16384), 14976, kMemory, true},
    {"h200", kTwo, k8B,
     "training.global_batch_size=4 parallel.reshard_after_forward=true activation_checkpointing.mode=selective",
     from_ms(1067.3, 16384), 14889, kMemory, true},
    {"h200", kTwo, k8B,
     "training.global_batch_size=4 parallel.reshard_after_forward=true activation_checkpointing.mode=full",
     from_ms(1269.0, 16384), 12624, kMemory, true},
    {"h200", kTwo, k70B, "training.global_batch_size=2 model.num_layers=9 activation_checkpointing.mode=full",
     from_ms(637.9, 8192), 12862, kMemory, true},
    {"h200", kTwo, k70B, "training.global_batch_size=2 model.num_layers=18 activation_checkpointing.mode=full",
     from_ms(1186.8, 8192), 6897, kMemory, true},
    {"h200", kTwo, k70B,
     "training.global_batch_size=2 model.num_layers=18 activation_checkpointing.mode=block "
     "activation_checkpointing.ratio=0.556",
     from_ms(1113.3, 8192), 7411, kMemory, true},
    {"h200", kFour, k8B, "training.global_batch_size=8 precision.linear=bfloat16", 10876, 10893, kSharded, true},
    {"h200", kFour, k8B, "training.global_batch_size=8 precision.linear=fp8_tensorwise", 15554, 15169, kSharded, true},
    {"h200", kFour, k8B, "training.global_batch_size=8 precision.linear=fp8_delayed", 15823, 15521, kSharded, true},
    {"h200", kFour, k8B, "training.global_batch_size=8 precision.linear=fp8_tensorwise", 16069, 15169, kTensor, true},
    {"h200", kFour, k2B, "training.global_batch_size=8 precision.linear=fp8_delayed", 54389, 54674, kSharded, true},
    {"h200", kFour, k8B,
     "training.global_batch_size=8 parallel.reshard_after_forward=true activation_checkpointing.mode=none",
     from_ms(1043.5, 16384), 15120, kRecomputed, true},
    {"h200", kFour, k8B,
     "training.global_batch_size=8 parallel.reshard_after_forward=true activation_checkpointing.mode=selective",
     from_ms(1066.0, 16384), 15030, kRecomputed, true},
    {"h200", kFour, k8B,
     "training.global_batch_size=8 parallel.reshard_after_forward=true activation_checkpointing.mode=full",
     from_ms(1266.1, 16384), 12725, kRecomputed, true},
    {"h200", kTensorFour, k8B,
     "model.preset=llama3_70b model.num_layers=3 training.global_batch_size=2 parallel.tensor_parallel=4",
     from_ms(131.3, 4096), 30342, kTensor, true},
    {"h200", kTensorFour, k8B,
     "model.preset=llama3_70b model.num_layers=6 training.global_batch_size=2 parallel.tensor_parallel=4",
     from_ms(217.4, 4096), 18596, kTensor, true},
    {"h200", kTensorFour, k8B,
     "model.preset=llama3_405b model.num_layers=1 training.global_batch_size=2 parallel.tensor_parallel=4",
     from_ms(183.6, 4096), 22102, kTensor, true},
    {"h200", kTensorFour, k8B,
     "model.preset=llama3_405b model.num_layers=3 training.global_batch_size=2 parallel.tensor_parallel=4",
     from_ms(362.7, 4096), 11276, kTensor, true},
    {"h200", kFour, k8B, "training.global_batch_size=64 parallel.accumulate_unsharded=false", 16629, 16450, kFourH200s},
    {"h200", kFour, k8B,
     "training.micro_batch_size=1 training.global_batch_size=16 parallel.accumulate_unsharded=false "
     "precision.linear=bfloat16",
     11052, 11713, kFourH200s},
    {"h200", kFour, k8B,
     "training.micro_batch_size=1 training.global_batch_size=16 parallel.accumulate_unsharded=false", 15991, 16287,
     kFourH200s},
    {"h200", kFour, k8B,
     "training.micro_batch_size=1 training.global_batch_size=16 parallel.accumulate_unsharded=false "
     "precision.linear=fp8_delayed",
     16243, 16695, kFourH200s},
    {"h200", kFour, k8B,
     "training.micro_batch_size=1 training.global_batch_size=16 parallel.accumulate_unsharded=false "
     "precision.linear=fp8_delayed precision.lm_head=fp8_backward",
     16527, 17025, kFourH200s},
    {"h200", kFour, k8B,
     "training.micro_batch_size=1 training.global_batch_size=16 parallel.accumulate_unsharded=false "
     "precision.linear=fp8_delayed precision.lm_head=fp8_backward precision.fast_accumulation=all",
     17125, 17728, kFourH200s},
    {"h200", kFour, k8B, "training.micro_batch_size=1 training.global_batch_size=16 parallel.accumulate_unsharded=true",
     16372, 16728, kFourH200s},
    {"h200", kTwoStages, k8B,
     "training.micro_batch_size=1 training.global_batch_size=16 parallel.accumulate_unsharded=false "
     "parallel.pipeline_parallel=2",
     13126, 14444, kFourH200s},
    {"h200", kTwoStages, k8B,
     "training.micro_batch_size=1 training.global_batch_size=16 parallel.accumulate_unsharded=false "
     "parallel.pipeline_parallel=2 parallel.pipeline_schedule=zero_bubble",
     14167, 15080, kFourH200s},
    {"h200", kTwoStages, k8B,
     "training.micro_batch_size=1 training.global_batch_size=16 parallel.accumulate_unsharded=true "
     "parallel.pipeline_parallel=2",
     13488, 14715, kFourH200s},
    {"h200", kFourStages, k8B,
     "training.micro_batch_size=1 training.global_batch_size=16 parallel.accumulate_unsharded=false "
     "parallel.pipeline_parallel=4",
     13109, 13876, kFourH200s},
    {"h200", kFourStages, k8B,
     "training.micro_batch_size=1 training.global_batch_size=16 parallel.accumulate_unsharded=false "
     "parallel.pipeline_parallel=4 parallel.pipeline_schedule=zero_bubble",
     14271, 14679, kFourH200s},
    {"h100", kOne, k2B, "training.global_batch_size=2 precision.linear=bfloat16", 43971, 43231, kAttention},
    {"h100", kOne, k2B, "training.global_batch_size=16 precision.linear=bfloat16", 45667, 45844, kAttention},
    {"h100", kOne, k2B, "training.global_batch_size=2 precision.linear=fp8_tensorwise", 53928, 50849, kAttention},
    {"h100", kOne, k2B, "training.global_batch_size=16 precision.linear=fp8_tensorwise", 57007, 55031, kAttention},
    {"h100", kOne, k2B, "training.global_batch_size=2 precision.linear=fp8_delayed", 55874, 53064, kAttention},
    {"h100", kOne, k2B, "training.global_batch_size=16 precision.linear=fp8_delayed", 58994, 57635, kAttention},
    {"h100", kOne, k1B, "training.global_batch_size=2 precision.linear=fp8_tensorwise", 72308, 69290, kAttention},
    {"h100", kOne, k1B, "training.global_batch_size=8 precision.linear=fp8_tensorwise", 74461, 73549, kAttention},
    {"h100", kOne, k1B,
     "data.seq_len=65536 training.micro_batch_size=1 training.global_batch_size=1 precision.linear=fp8_tensorwise "
     "activation_checkpointing.mode=full",
     21575, 21646, kAttention},
    {"h100", kOne, k2B, "training.global_batch_size=2 precision.linear=bfloat16", 44628, 43231, kPyTorch},
    {"h100", kOne, k2B, "training.global_batch_size=2 precision.linear=fp8_tensorwise", 54784, 50849, kPyTorch},
    {"h100", kOne, k2B, "training.global_batch_size=4 precision.linear=bfloat16", 45021, 44686, kStructure},
    {"h100", kOne, k2B, "training.global_batch_size=4 precision.linear=fp8_tensorwise", 55732, 53158, kStructure},
    {"h100", kOne, k2B, "training.global_batch_size=4 precision.linear=fp8_delayed", 57739, 55583, kStructure},
    {"h100", kOne, k2B, "training.global_batch_size=4 precision.linear=fp8_rowwise", 52492, 51286, kStructure},
    {"h100", kOne, k2B, "training.global_batch_size=4 precision.linear=fp8_blockwise", 52905, 50925, kStructure},
    {"h100", kTwo, k2B, "training.global_batch_size=4 precision.linear=fp8_tensorwise", 53492, 51943, kPyTorch},
    {"h100", kTensorTwo, k2B, "training.global_batch_size=4 precision.linear=fp8_tensorwise parallel.tensor_parallel=2",
     46180, 46259, kPyTorch},
};

}  // namespace

std::span<const MeasuredRun> measured_runs() { return kRuns; }

PredictionRange prediction_range(double wps, std::string_view machine, const MeshShape& mesh, int64_t gpus_per_node,
                                 std::span<const MeasuredRun> runs) {
  // Runs with pipeline stages are predicted by a simulation, whose errors say nothing about other runs.
  const auto is_alike = [&](const MeasuredRun& run) { return (run.mesh.pipeline > 1) == (mesh.pipeline > 1); };
  const auto is_here = [&](const MeasuredRun& run) { return run.machine == machine && is_alike(run); };
  const bool here = std::any_of(runs.begin(), runs.end(), is_here);
  PredictionRange range;
  MeshShape largest;
  for (const MeasuredRun& run : runs) {
    if (!is_alike(run) || (here && !is_here(run))) continue;
    const double error = run.error();
    range.smallest_error = range.runs == 0 ? error : std::min(range.smallest_error, error);
    range.largest_error = range.runs == 0 ? error : std::max(range.largest_error, error);
    range.gpus = std::max(range.gpus, run.mesh.ranks());
    for (const MeshAxis& axis : kMeshAxes) largest.*axis.size = std::max(largest.*axis.size, run.mesh.*axis.size);
    ++range.runs;
  }
  range.low_wps = wps / (1 + range.largest_error);
  range.high_wps = wps / (1 + range.smallest_error);
  if (!here) range.not_measured.push_back(fmt::format("machine {}", machine));
  if (mesh.ranks() > range.gpus) range.not_measured.push_back(fmt::format("more than {} GPUs", range.gpus));
  if (mesh.ranks() > gpus_per_node) range.not_measured.emplace_back("several nodes");
  for (const MeshAxis& axis : kMeshAxes) {
    const int64_t size = mesh.*axis.size;
    if (axis.size != &MeshShape::shard && size > largest.*axis.size) {
      range.not_measured.push_back(fmt::format("{} {}", axis.name, size));
    }
  }
  return range;
}

std::optional<PredictionRange> prediction_range(double wps, const PredictedRun& run, const MachineRates& machine,
                                                const Cluster& cluster) {
  if (machine.device == "cpu") return std::nullopt;
  PredictionRange range = prediction_range(wps, machine.name, run.mesh, cluster.gpus_per_node, kRuns);
  if (run.document_length > 0) range.not_measured.emplace_back("documents");
  if (run.config.optimizer.type == OptimizerType::kMuon) range.not_measured.emplace_back("Muon");
  return range;
}

std::string describe(const PredictionRange& range) {
  const auto percent = [](double error) { return fmt::format("{:+.1f}%", 100 * error); };
  std::string text = fmt::format("{} to {} wps, by errors of {} to {} in {} measured runs on up to {} GPUs",
                                 with_thousands_separators(std::llround(range.low_wps)),
                                 with_thousands_separators(std::llround(range.high_wps)), percent(range.smallest_error),
                                 percent(range.largest_error), range.runs, range.gpus);
  if (!range.not_measured.empty()) text += fmt::format("; not measured: {}", fmt::join(range.not_measured, ", "));
  return text;
}

}  // namespace octavo

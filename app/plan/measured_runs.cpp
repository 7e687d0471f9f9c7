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
constexpr std::string_view kDocuments = "2026-11-26-documents";
constexpr std::string_view kLargeVocabulary = "2026-11-26-large-vocabulary";
constexpr std::string_view kTwoGpus = "2026-11-26-two-gpus";
constexpr std::string_view kFourH200sAgain = "2026-11-27-four-h200";

constexpr MeshShape kOne;
constexpr MeshShape kTwo{.shard = 2};
constexpr MeshShape kReplicas{.replicate = 2};
constexpr MeshShape kFour{.shard = 4};
constexpr MeshShape kTwoStages{.shard = 2, .pipeline = 2};
constexpr MeshShape kFourStages{.pipeline = 4};
constexpr MeshShape kTensorTwo{.tensor = 2};
constexpr MeshShape kContextTwo{.context = 2};
constexpr MeshShape kTensorFour{.tensor = 4};
constexpr MeshShape kReplicatedTensors{.replicate = 2, .tensor = 2};
constexpr MeshShape kReplicatedShards{.replicate = 2, .shard = 2};
constexpr MeshShape kShardedTensors{.shard = 2, .tensor = 2};

constexpr std::string_view k1B = "llama3_1b_1gpu.yaml";
constexpr std::string_view k2B = "llama3_1.8b_1gpu.yaml";
constexpr std::string_view k8B = "llama3_8b_8gpu.yaml";
constexpr std::string_view k70B = "llama3_70b_8gpu.yaml";

// Returns tokens per second per GPU for a step of `ms` milliseconds with `tokens` tokens per GPU.
constexpr double from_ms(double ms, double tokens) { return tokens / ms * 1e3; }

constexpr MeasuredRun kRuns[] = {
    {"h200", kOne, k2B, "training.global_batch_size=2 precision.linear=bfloat16", 46136, 45649, kAttention},
    {"h200", kOne, k2B, "training.global_batch_size=2 precision.linear=fp8_tensorwise", 57710, 56780, kAttention},
    {"h200", kOne, k2B, "training.global_batch_size=2 precision.linear=fp8_delayed", 59759, 57701, kAttention},
    {"h200", kOne, k2B, "training.global_batch_size=2 precision.linear=fp8_rowwise", 55630, 54204, kAttention},
    {"h200", kOne, k2B, "training.global_batch_size=2 precision.linear=fp8_blockwise", 53818, 52758, kAttention},
    {"h200", kOne, k2B, "training.global_batch_size=16 precision.linear=fp8_tensorwise", 60880, 60278, kAttention},
    {"h200", kOne, k8B, "training.global_batch_size=2 optimizer.state_dtype=float8", 15666, 15251, kAttention},
    {"h200", kOne, k8B, "training.global_batch_size=8 optimizer.state_dtype=float8", 16451, 15914, kAttention},
    {"h200", kTwo, k2B, "training.global_batch_size=4 precision.linear=fp8_tensorwise", 55712, 57305, kTwoH200s},
    {"h200", kReplicas, k2B,
     "training.global_batch_size=4 precision.linear=fp8_tensorwise parallel.data_parallel_shard=1", 54088, 55723,
     kTwoH200s},
    {"h200", kTwo, k8B, "training.global_batch_size=4 precision.linear=bfloat16", 11158, 11248, kTwoH200s},
    {"h200", kTwo, k8B, "training.global_batch_size=4 precision.linear=fp8_tensorwise", 16059, 16029, kTwoH200s},
    {"h200", kTwo, k8B, "training.global_batch_size=16 precision.linear=fp8_tensorwise", 16549, 16658, kTwoH200s},
    {"h200", kTwo, k8B, "training.global_batch_size=4 precision.linear=fp8_delayed", 16291, 16208, kTwoH200s},
    {"h200", kTwo, k8B, "training.global_batch_size=4 optimizer.state_dtype=float8", 16062, 16191, kTwoH200s},
    {"h200", kTwo, k70B, "training.global_batch_size=2 model.num_layers=18 optimizer.state_dtype=float8", 7666, 8221,
     kTwoH200s},
    {"h200", kTwo, k2B, "training.global_batch_size=4 precision.linear=bfloat16", 42561, 43470, kMemory, true},
    {"h200", kTwo, k2B, "training.global_batch_size=4 precision.linear=fp8_tensorwise", 53817, 53664, kMemory, true},
    {"h200", kTwo, k8B, "training.global_batch_size=4 precision.linear=bfloat16", 10990, 10862, kMemory, true},
    {"h200", kTwo, k8B, "training.global_batch_size=4 precision.linear=fp8_tensorwise", 15752, 15257, kMemory, true},
    {"h200", kTwo, k8B, "training.global_batch_size=4 precision.linear=fp8_delayed", 15769, 15419, kMemory, true},
    {"h200", kTwo, k8B,
     "training.global_batch_size=4 parallel.reshard_after_forward=true activation_checkpointing.mode=none",
     from_ms(1059.0, 16384), 15222, kMemory, true},
    {"h200", kTwo, k8B,
     "training.global_batch_size=4 parallel.reshard_after_forward=true activation_checkpointing.mode=selective",
     from_ms(1067.3, 16384), 15134, kMemory, true},
    {"h200", kTwo, k8B,
     "training.global_batch_size=4 parallel.reshard_after_forward=true activation_checkpointing.mode=full",
     from_ms(1269.0, 16384), 12803, kMemory, true},
    {"h200", kTwo, k70B, "training.global_batch_size=2 model.num_layers=9 activation_checkpointing.mode=full",
     from_ms(637.9, 8192), 12995, kMemory, true},
    {"h200", kTwo, k70B, "training.global_batch_size=2 model.num_layers=18 activation_checkpointing.mode=full",
     from_ms(1186.8, 8192), 6970, kMemory, true},
    {"h200", kTwo, k70B,
     "training.global_batch_size=2 model.num_layers=18 activation_checkpointing.mode=block "
     "activation_checkpointing.ratio=0.556",
     from_ms(1113.3, 8192), 7495, kMemory, true},
    {"h200", kFour, k8B, "training.global_batch_size=8 precision.linear=bfloat16", 10876, 10918, kSharded, true},
    {"h200", kFour, k8B, "training.global_batch_size=8 precision.linear=fp8_tensorwise", 15554, 15409, kSharded, true},
    {"h200", kFour, k8B, "training.global_batch_size=8 precision.linear=fp8_delayed", 15823, 15575, kSharded, true},
    {"h200", kFour, k8B, "training.global_batch_size=8 precision.linear=fp8_tensorwise", 16069, 15409, kTensor, true},
    {"h200", kFour, k2B, "training.global_batch_size=8 precision.linear=fp8_delayed", 54389, 54918, kSharded, true},
    {"h200", kFour, k8B,
     "training.global_batch_size=8 parallel.reshard_after_forward=true activation_checkpointing.mode=none",
     from_ms(1043.5, 16384), 15358, kRecomputed, true},
    {"h200", kFour, k8B,
     "training.global_batch_size=8 parallel.reshard_after_forward=true activation_checkpointing.mode=selective",
     from_ms(1066.0, 16384), 15268, kRecomputed, true},
    {"h200", kFour, k8B,
     "training.global_batch_size=8 parallel.reshard_after_forward=true activation_checkpointing.mode=full",
     from_ms(1266.1, 16384), 12899, kRecomputed, true},
    {"h200", kTensorFour, k70B,
     "training.micro_batch_size=2 training.global_batch_size=2 parallel.tensor_parallel=4 "
     "optimizer.state_dtype=float32 activation_checkpointing.mode=none model.num_layers=3",
     from_ms(130.90, 4096), 30626, kFourH200s},
    {"h200", kTensorFour, k70B,
     "training.micro_batch_size=2 training.global_batch_size=2 parallel.tensor_parallel=4 "
     "optimizer.state_dtype=float32 activation_checkpointing.mode=none model.num_layers=6",
     from_ms(212.17, 4096), 18743, kFourH200s},
    {"h200", kTensorFour, k70B,
     "training.micro_batch_size=2 training.global_batch_size=2 parallel.tensor_parallel=4 "
     "optimizer.state_dtype=float32 activation_checkpointing.mode=none model.preset=llama3_405b model.num_layers=1",
     from_ms(185.38, 4096), 22314, kFourH200s},
    {"h200", kTensorFour, k70B,
     "training.micro_batch_size=2 training.global_batch_size=2 parallel.tensor_parallel=4 "
     "optimizer.state_dtype=float32 activation_checkpointing.mode=none model.preset=llama3_405b model.num_layers=3",
     from_ms(366.16, 4096), 11349, kFourH200s},
    {"h200", kFour, k8B, "training.global_batch_size=64 parallel.accumulate_unsharded=false", 16629, 16717, kFourH200s},
    {"h200", kFour, k8B,
     "training.micro_batch_size=1 training.global_batch_size=16 parallel.accumulate_unsharded=false "
     "precision.linear=bfloat16",
     11052, 11740, kFourH200s},
    {"h200", kFour, k8B,
     "training.micro_batch_size=1 training.global_batch_size=16 parallel.accumulate_unsharded=false", 16274, 16554,
     kFourH200s},
    {"h200", kFour, k8B,
     "training.micro_batch_size=1 training.global_batch_size=16 parallel.accumulate_unsharded=false "
     "precision.linear=fp8_delayed",
     16243, 16749, kFourH200s},
    {"h200", kFour, k8B,
     "training.micro_batch_size=1 training.global_batch_size=16 parallel.accumulate_unsharded=false "
     "precision.linear=fp8_delayed precision.lm_head=fp8_backward",
     16527, 17095, kFourH200s},
    {"h200", kFour, k8B,
     "training.micro_batch_size=1 training.global_batch_size=16 parallel.accumulate_unsharded=false "
     "precision.linear=fp8_delayed precision.lm_head=fp8_backward precision.fast_accumulation=all",
     17125, 17781, kFourH200s},
    {"h200", kFour, k8B, "training.micro_batch_size=1 training.global_batch_size=16 parallel.accumulate_unsharded=true",
     16749, 17010, kFourH200s},
    {"h200", kTwoStages, k8B,
     "training.micro_batch_size=1 training.global_batch_size=16 parallel.accumulate_unsharded=false "
     "parallel.pipeline_parallel=2",
     13830, 14671, kFourH200s},
    {"h200", kTwoStages, k8B,
     "training.micro_batch_size=1 training.global_batch_size=16 parallel.accumulate_unsharded=false "
     "parallel.pipeline_parallel=2 parallel.pipeline_schedule=zero_bubble",
     14448, 15328, kFourH200s},
    {"h200", kTwoStages, k8B,
     "training.micro_batch_size=1 training.global_batch_size=16 parallel.accumulate_unsharded=false "
     "parallel.pipeline_parallel=2 parallel.pipeline_schedule=interleaved parallel.pipeline_chunks=2",
     14825, 15512, kFourH200s},
    {"h200", kFourStages, k8B,
     "training.micro_batch_size=1 training.global_batch_size=16 parallel.accumulate_unsharded=false "
     "parallel.pipeline_parallel=4",
     13559, 14123, kFourH200s},
    {"h200", kFourStages, k8B,
     "training.micro_batch_size=1 training.global_batch_size=16 parallel.accumulate_unsharded=false "
     "parallel.pipeline_parallel=4 parallel.pipeline_schedule=zero_bubble",
     14604, 14947, kFourH200s},
    {"h200", kFourStages, k8B,
     "training.micro_batch_size=1 training.global_batch_size=16 parallel.accumulate_unsharded=false "
     "parallel.pipeline_parallel=4 parallel.pipeline_schedule=interleaved parallel.pipeline_chunks=2",
     14887, 15339, kFourH200s},
    {"h200", kReplicatedTensors, k8B,
     "training.micro_batch_size=1 training.global_batch_size=4 optimizer.state_dtype=bfloat16 "
     "parallel.data_parallel_replicate=2 parallel.data_parallel_shard=1 parallel.tensor_parallel=2",
     13584, 14189, kFourH200s},
    {"h200", kShardedTensors, k8B,
     "training.micro_batch_size=1 training.global_batch_size=4 optimizer.state_dtype=bfloat16 "
     "parallel.tensor_parallel=2",
     14093, 14645, kFourH200s},
    {"h200", kReplicatedShards, k8B,
     "training.micro_batch_size=1 training.global_batch_size=4 optimizer.state_dtype=bfloat16 "
     "parallel.data_parallel_replicate=2",
     14883, 15297, kFourH200s},
    {"h200", kTensorTwo, k70B,
     "training.micro_batch_size=2 training.global_batch_size=2 parallel.tensor_parallel=2 "
     "optimizer.state_dtype=float32 activation_checkpointing.mode=none model.num_layers=3",
     from_ms(247.06, 8192), 33671, kFourH200sAgain},
    {"h200", kTensorFour, k70B,
     "training.micro_batch_size=2 training.global_batch_size=2 parallel.tensor_parallel=4 "
     "optimizer.state_dtype=float32 activation_checkpointing.mode=none model.num_layers=6",
     from_ms(213.05, 4096), 18743, kFourH200sAgain},
    {"h200", kFour, k8B,
     "training.global_batch_size=8 activation_checkpointing.mode=selective parallel.reshard_after_forward=true "
     "precision.linear=bfloat16",
     11138, 11219, kFourH200sAgain},
    {"h200", kOne, k2B, "training.global_batch_size=2 precision.linear=bfloat16", 46104, 45649, kLargeVocabulary},
    {"h200", kOne, k2B, "training.global_batch_size=16 precision.linear=bfloat16", 47652, 47583, kLargeVocabulary},
    {"h200", kOne, k2B, "training.global_batch_size=2 precision.linear=fp8_tensorwise", 58327, 56780, kLargeVocabulary},
    {"h200", kOne, k2B, "training.global_batch_size=16 precision.linear=fp8_tensorwise", 61497, 60278,
     kLargeVocabulary},
    {"h200", kOne, k2B, "training.global_batch_size=2 precision.linear=fp8_delayed", 60195, 57701, kLargeVocabulary},
    {"h200", kOne, k2B, "training.global_batch_size=16 precision.linear=fp8_delayed", 62505, 61317, kLargeVocabulary},
    {"h200", kOne, k2B, "training.global_batch_size=2 precision.linear=fp8_delayed precision.lm_head=fp8_backward",
     60957, 59792, kLargeVocabulary},
    {"h200", kOne, k2B, "training.global_batch_size=16 precision.linear=fp8_delayed precision.lm_head=fp8_backward",
     64832, 63684, kLargeVocabulary},
    {"h200", kOne, k2B,
     "training.global_batch_size=2 precision.linear=fp8_delayed precision.lm_head=fp8_backward "
     "precision.fast_accumulation=all",
     62981, 61584, kLargeVocabulary},
    {"h200", kOne, k2B,
     "training.global_batch_size=16 precision.linear=fp8_delayed precision.lm_head=fp8_backward "
     "precision.fast_accumulation=all",
     66905, 65721, kLargeVocabulary},
    {"h200", kTwo, k8B,
     "model.num_layers=8 data.seq_len=65536 training.micro_batch_size=1 activation_checkpointing.mode=full "
     "parallel.accumulate_unsharded=false parallel.reshard_after_forward=true training.global_batch_size=2",
     21141, 19512, kTwoGpus},
    {"h200", kContextTwo, k8B,
     "model.num_layers=8 data.seq_len=65536 training.micro_batch_size=1 activation_checkpointing.mode=full "
     "parallel.accumulate_unsharded=false parallel.reshard_after_forward=true training.global_batch_size=1 "
     "parallel.context_parallel=2",
     20387, 19141, kTwoGpus},
    {"h100", kOne, k2B, "training.global_batch_size=2 precision.linear=bfloat16", 43971, 44216, kAttention},
    {"h100", kOne, k2B, "training.global_batch_size=16 precision.linear=bfloat16", 45667, 46827, kAttention},
    {"h100", kOne, k2B, "training.global_batch_size=2 precision.linear=fp8_tensorwise", 53928, 53422, kAttention},
    {"h100", kOne, k2B, "training.global_batch_size=16 precision.linear=fp8_tensorwise", 57007, 57845, kAttention},
    {"h100", kOne, k2B, "training.global_batch_size=2 precision.linear=fp8_delayed", 55874, 54857, kAttention},
    {"h100", kOne, k2B, "training.global_batch_size=16 precision.linear=fp8_delayed", 58994, 59532, kAttention},
    {"h100", kOne, k1B, "training.global_batch_size=2 precision.linear=fp8_tensorwise", 72308, 73232, kAttention},
    {"h100", kOne, k1B, "training.global_batch_size=8 precision.linear=fp8_tensorwise", 74461, 77792, kAttention},
    {"h100", kOne, k1B,
     "data.seq_len=65536 training.micro_batch_size=1 training.global_batch_size=1 precision.linear=fp8_tensorwise "
     "activation_checkpointing.mode=full",
     21575, 21805, kAttention},
    {"h100", kOne, k2B, "training.global_batch_size=2 precision.linear=bfloat16", 44628, 44216, kPyTorch},
    {"h100", kOne, k2B, "training.global_batch_size=2 precision.linear=fp8_tensorwise", 54784, 53422, kPyTorch},
    {"h100", kOne, k2B, "training.global_batch_size=4 precision.linear=bfloat16", 45021, 45671, kStructure},
    {"h100", kOne, k2B, "training.global_batch_size=4 precision.linear=fp8_tensorwise", 55732, 55863, kStructure},
    {"h100", kOne, k2B, "training.global_batch_size=4 precision.linear=fp8_delayed", 57739, 57435, kStructure},
    {"h100", kOne, k2B, "training.global_batch_size=4 precision.linear=fp8_rowwise", 52492, 52590, kStructure},
    {"h100", kOne, k2B, "training.global_batch_size=4 precision.linear=fp8_blockwise", 52905, 55235, kStructure},
    {"h100", kTwo, k2B, "training.global_batch_size=4 precision.linear=fp8_tensorwise", 53492, 54530, kPyTorch},
    {"h100", kTensorTwo, k2B, "training.global_batch_size=4 precision.linear=fp8_tensorwise parallel.tensor_parallel=2",
     46180, 45581, kPyTorch},
    {"h100", kOne, k2B, "training.global_batch_size=2 precision.linear=bfloat16 data.document_mask=true", 52498, 52107,
     kDocuments, false, 64},
    {"h100", kOne, k2B, "training.global_batch_size=2 precision.linear=bfloat16 data.document_mask=true", 53352, 53833,
     kDocuments, false, 256},
    {"h100", kOne, k2B, "training.global_batch_size=2 precision.linear=bfloat16 data.document_mask=true", 52732, 52271,
     kDocuments, false, 1024},
    {"h100", kOne, k2B, "training.global_batch_size=2 precision.linear=bfloat16 data.document_mask=true", 48527, 48164,
     kDocuments, false, 4096},
    {"h100", kOne, k2B, "training.global_batch_size=2 precision.linear=fp8_tensorwise data.document_mask=true", 66539,
     65386, kDocuments, false, 64},
    {"h100", kOne, k2B, "training.global_batch_size=2 precision.linear=fp8_tensorwise data.document_mask=true", 67762,
     65644, kDocuments, false, 1024},
    {"h100", kOne, k2B, "training.global_batch_size=2 precision.linear=fp8_tensorwise data.document_mask=true", 59720,
     59295, kDocuments, false, 4096},
    {"h100", kTwo, k8B,
     "model.num_layers=8 data.seq_len=65536 training.micro_batch_size=1 activation_checkpointing.mode=full "
     "parallel.accumulate_unsharded=false parallel.reshard_after_forward=true training.global_batch_size=2",
     20359, 19272, kTwoGpus},
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
  const bool has_documents = std::any_of(std::begin(kRuns), std::end(kRuns), [&](const MeasuredRun& measured) {
    return measured.machine == machine.name && measured.document_length > 0;
  });
  if (run.document_length > 0 && !has_documents) range.not_measured.emplace_back("documents");
  if (run.config.optimizer.type == OptimizerType::kMuon) range.not_measured.emplace_back("Muon");
  return range;
}

std::string describe(const PredictionRange& range) {
  const auto percent = [](double error) {
    return fmt::format("{:.1f}% too {}", std::abs(100 * error), error < 0 ? "slow" : "fast");
  };
  const std::string wps = fmt::format("{} to {} wps", with_thousands_separators(std::llround(range.low_wps)),
                                      with_thousands_separators(std::llround(range.high_wps)));
  const std::string runs = fmt::format("{} measured runs on up to {} GPUs were predicted {} to {}", range.runs,
                                       range.gpus, percent(range.smallest_error), percent(range.largest_error));
  if (range.not_measured.empty()) return fmt::format("{}, because {}", wps, runs);
  return fmt::format("unknown, not measured: {}; {}, which would give {}", fmt::join(range.not_measured, ", "), runs,
                     wps);
}

}  // namespace octavo

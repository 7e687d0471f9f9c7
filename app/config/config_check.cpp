#include "app/config/config_check.h"

#include <numeric>
#include <set>
#include <utility>

#include "app/config/config_names.h"
#include "app/config/error_list.h"
#include "app/config/stages.h"
#include "core/error.h"
#include "core/suggestions.h"
#include "kernels/attention/sdpa.h"
#include "kernels/optimizer/adamw_float8.h"
#include "model/architecture/model_fields.h"
#include "model/architecture/tensor_parallel.h"
#include "model/parameters/pipeline_stages.h"

namespace octavo {

namespace {

using namespace config_names;

// Checks that the data-parallel ranks divide every batch, and that each rank has at least as many micro-batches per
// step as there are pipeline stages, or a multiple of that number if the schedule is interleaved.
void check_batch(const StageConfig& config, int64_t ranks) {
  const int64_t data_ranks = config.parallel.data_parallel_ranks(ranks);
  const int64_t unit = config.training.micro_batch_size * data_ranks;
  const int64_t stages = config.parallel.pipeline_parallel;
  const bool interleaved = config.parallel.pipeline_schedule == PipelineSchedule::kInterleaved;
  const auto check_size = [&](const char* key, int64_t size, SizeRange range) {
    CHECK_INPUT(size % unit == 0,
                "{} is {}, expected a multiple of training.micro_batch_size {} times {} data-parallel ranks = {}{}",
                key, size, config.training.micro_batch_size, data_ranks, unit,
                would_work(multiples_near(size, unit, range)));
    CHECK_INPUT(size >= unit * stages,
                "{} is {}, which is {} micro-batch{} per rank and step, expected at least one for each of the {} "
                "pipeline stages of parallel.pipeline_parallel{}",
                key, size, size / unit, size / unit == 1 ? "" : "es", stages, would_work({unit * stages}));
    CHECK_INPUT(!interleaved || size % (unit * stages) == 0,
                "{} is {}, which is {} micro-batches per rank and step, expected a multiple of the {} pipeline stages "
                "of parallel.pipeline_parallel, because parallel.pipeline_schedule is interleaved{}",
                key, size, size / unit, stages, would_work(multiples_near(size, unit * stages, range)));
  };
  check_size("training.global_batch_size", config.training.global_batch_size, {});
  int64_t smallest = 1;
  int64_t end = 0;
  for (const BatchPhase& phase : config.training.batch_size_warmup) {
    end += phase.steps;
    if (end <= config.stage.steps_before) continue;
    CHECK_INPUT(phase.batch_size >= smallest && phase.batch_size < config.training.global_batch_size,
                "training.batch_size_warmup has the batch_size {}, expected sizes that increase and stay below "
                "training.global_batch_size {}",
                phase.batch_size, config.training.global_batch_size);
    check_size("the batch_size of training.batch_size_warmup", phase.batch_size,
               {.smallest = smallest, .largest = config.training.global_batch_size - 1});
    smallest = phase.batch_size + 1;
  }
}

void check_pipeline_stages(const Config& config) {
  const ParallelConfig& parallel = config.parallel;
  CHECK_INPUT(parallel.pipeline_schedule == PipelineSchedule::kOneForwardOneBackward || parallel.pipeline_parallel > 1,
              "parallel.pipeline_schedule is {}, but parallel.pipeline_parallel is 1, expected at least 2 stages",
              name_of(kPipelineSchedule, parallel.pipeline_schedule));
  const bool interleaved = parallel.pipeline_schedule == PipelineSchedule::kInterleaved;
  CHECK_INPUT(parallel.pipeline_chunks == 1 || interleaved,
              "parallel.pipeline_chunks is {}, but parallel.pipeline_schedule is {}, expected interleaved, the only "
              "schedule with several chunks",
              parallel.pipeline_chunks, name_of(kPipelineSchedule, parallel.pipeline_schedule));
  CHECK_INPUT(
      parallel.pipeline_chunks > 1 || !interleaved,
      "parallel.pipeline_schedule is interleaved, but parallel.pipeline_chunks is 1, expected at least 2 chunks "
      "of blocks per stage");
  (void)pipeline_stages(config.model, parallel, parallel.pipeline_parallel);
}

void check_schedule(const StageConfig& config) {
  const OptimizerConfig& optimizer = config.optimizer;
  CHECK_INPUT(
      optimizer.decay_steps == 0 || optimizer.schedule == Schedule::kWsd,
      "optimizer.decay_steps is {}, but optimizer.schedule is {}, expected wsd, the only schedule with a decay phase",
      optimizer.decay_steps, name_of(kSchedule, optimizer.schedule));
  CHECK_INPUT(
      optimizer.decay_type == Decay::kLinear || optimizer.schedule == Schedule::kWsd,
      "optimizer.decay_type is {}, but optimizer.schedule is {}, expected wsd, the only schedule with a decay phase",
      name_of(kDecayType, optimizer.decay_type), name_of(kSchedule, optimizer.schedule));
  const auto [begin, end] = config.schedule_steps();
  CHECK_INPUT(optimizer.decay_steps == 0 || optimizer.warmup_steps + optimizer.decay_steps <= end - begin,
              "optimizer.warmup_steps {} and optimizer.decay_steps {} together exceed {} {}", optimizer.warmup_steps,
              optimizer.decay_steps, config.stage.own_schedule ? "the steps of the stage," : "training.steps",
              end - begin);
}

void check_optimizer(const OptimizerConfig& optimizer) {
  CHECK_INPUT(traits(optimizer.type).takes_momentum || optimizer.momentum == OptimizerConfig().momentum,
              "optimizer.momentum is {}, but optimizer.type is {}, which has no momentum; leave the key out, or set "
              "optimizer.type to muon",
              optimizer.momentum, name_of(kOptimizerType, optimizer.type));
  if (optimizer.state_dtype != DType::kFloat8E4M3) return;
  CHECK_INPUT(moment_ratio_bound(optimizer.beta1, optimizer.beta2) <= kLargestMomentRatio,
              "optimizer.betas is [{}, {}], with which the first moment can exceed {} times the square root of the "
              "second moment, the maximum of optimizer.state_dtype float8; expected a smaller first beta, such as "
              "[0.9, 0.95], or optimizer.state_dtype bfloat16",
              optimizer.beta1, optimizer.beta2, kLargestMomentRatio);
}

void check_token_id(const std::optional<int32_t>& id, const char* key, int64_t vocab_size) {
  CHECK_INPUT(!id || *id < vocab_size, "{} is {}, expected a token below model.vocab_size {}", key, *id, vocab_size);
}

void check_model(const Config& config) {
  if (!config.model_complete() && !config.init_from.empty()) return;
  CHECK_INPUT(config.model_given(),
              "{} describes no model, expected model.preset, the fields of the model's shape, or model.init_from",
              config.source);
  for_each_field(config.model, [&](const auto& field, const auto& value) {
    const bool is_given = field.presence == Presence::kDefault || shape_to_json<nlohmann::json>(value) != 0;
    CHECK_INPUT(is_given,
                "{} gives some fields of the model's shape but not model.{}, expected all of them, or a preset",
                config.source, field.name);
  });
  config.model.validate();
  check_token_id(config.data.bos_id, "data.bos_id", config.model.vocab_size);
  check_token_id(config.data.eos_id, "data.eos_id", config.model.vocab_size);
}

// Returns the number of tokens in a micro-batch of one rank, or of one group of tensor-parallel ranks.
int64_t micro_batch_tokens(const Config& config) {
  return config.training.micro_batch_size * config.data.seq_len / config.parallel.context_parallel;
}

// Returns "; 4 would work" with the divisors of `whole` near parallel.tensor_parallel, preferably ones that are
// possible with `ranks` ranks.
std::string would_work_as_tensor_parallel(const Config& config, int64_t whole, int64_t ranks) {
  const int64_t size = config.parallel.tensor_parallel;
  const auto fills_the_ranks = [&](int64_t other) {
    ParallelConfig parallel = config.parallel;
    parallel.tensor_parallel = other;
    if (!parallel.suits(ranks)) return false;
    return config.training.global_batch_size %
               (config.training.micro_batch_size * parallel.data_parallel_ranks(ranks)) ==
           0;
  };
  const std::string sentence = would_work(divisors_near(size, whole, fills_the_ranks));
  return sentence.empty() ? would_work(divisors_near(size, whole), " on another number of ranks") : sentence;
}

// Checks that the number of tensor-parallel ranks divides the sizes of the layers and the tokens of a micro-batch.
void check_division(const Config& config, int64_t ranks) {
  const int64_t size = config.parallel.tensor_parallel;
  const int64_t tokens = micro_batch_tokens(config);
  const int64_t sharing = config.parallel.context_parallel;
  constexpr int64_t kTokens = int64_t{1} << 31;  // Token indices are 32-bit numbers.
  CHECK_INPUT(tokens < kTokens,
              "training.micro_batch_size {} times data.seq_len {} is {} tokens per rank, expected fewer than {}",
              config.training.micro_batch_size, config.data.seq_len, tokens, kTokens);
  std::vector<DividedSize> divided = tensor_parallel_sizes(config.model);
  divided.push_back({fmt::format("the tokens of a micro-batch, training.micro_batch_size {} times data.seq_len {}{} =",
                                 config.training.micro_batch_size, config.data.seq_len,
                                 sharing == 1 ? "" : fmt::format(" over parallel.context_parallel {}", sharing)),
                     tokens});
  int64_t common = 0;
  for (const DividedSize& some : divided) common = std::gcd(common, some.size);
  for (const auto& [name, whole] : divided) {
    CHECK_INPUT(whole % size == 0, "parallel.tensor_parallel is {}, expected a divisor of {} {}{}", size, name, whole,
                would_work_as_tensor_parallel(config, common, ranks));
  }
}

// Returns the number of tokens of which the length of a context-parallel chunk must be a multiple: the block length of
// blockwise scales, so that the scales do not depend on the mesh, or else 1.
int64_t chunk_unit(const Config& config) {
  return traits(traits(config.precision.linear).activations).blockwise ? traits(config.precision.linear).alignment : 1;
}

// Checks that each sequence can be divided into two equal chunks per context-parallel rank, of a multiple of `unit`
// tokens each. `who_asks` is the end of the error message.
void check_chunks(const Config& config, int64_t unit, const std::string& who_asks) {
  const int64_t ranks = config.parallel.context_parallel;
  if (ranks == 1) return;
  const int64_t step = 2 * ranks * unit;
  const int64_t seq_len = config.data.seq_len;
  CHECK_INPUT(seq_len % step == 0,
              "data.seq_len is {}, expected a multiple of {} with parallel.context_parallel {}, because each "
              "context-parallel rank has two equal chunks of a sequence{}{}",
              seq_len, step, ranks, who_asks, would_work(multiples_near(seq_len, step, {.largest = kMaxSeqLen})));
}

std::string of_each_rank(const Config& config) {
  const int64_t ranks = config.parallel.tensor_parallel;
  return ranks == 1 ? "" : fmt::format(" on each of parallel.tensor_parallel {} ranks", ranks);
}

// Checks the dimensions of the linears. Hopper's FP8 matmul requires a contracted dimension that is a multiple of its
// alignment, and every dimension is contracted in forward or in one of the two backward matmuls.
void check_linear_shapes(const Config& config) {
  const PrecisionConfig& precision = config.precision;
  if (!is_fp8(precision.linear)) return;
  const int64_t unit = traits(precision.linear).alignment;
  const ModelConfig model = local_config(config.model, {.rank = 0, .size = config.parallel.tensor_parallel});
  const int64_t tokens = micro_batch_tokens(config);
  const std::string of_rank = of_each_rank(config);
  const std::pair<const char*, int64_t> dimensions[] = {
      {"model.hidden_size, the input width of qkv,", model.hidden_size},
      {"(num_heads + 2 num_kv_heads) * head_dim, the output width of qkv,", model.qkv_width()},
      {"num_heads * head_dim, the input width of o,", model.attention_width()},
      {"model.intermediate_size, the input width of down,", model.intermediate_size},
      {"the number of tokens of a micro-batch", tokens}};
  for (const auto& [name, size] : dimensions) {
    CHECK_INPUT(
        size % unit == 0, "precision.linear is {}, which needs multiples of {}, but {}{} is {}; {}",
        traits(precision.linear).name, unit, name, of_rank, size,
        size % 16 == 0 ? "fp8_tensorwise, fp8_delayed, fp8_rowwise or bfloat16 would work" : "bfloat16 would work");
  }
}

// Checks the shape of lm_head, except the vocabulary, which is padded on each rank (local_config). The error suggests
// the next size that works.
void check_lm_head_shape(const Config& config) {
  const LmHeadPrecision lm_head = config.precision.lm_head;
  if (!is_fp8(lm_head)) return;
  constexpr int64_t kUnit = traits(kLmHeadRecipe).alignment;
  static_assert(kVocabAlignment % kUnit == 0);
  const std::pair<const char*, int64_t> dimensions[] = {
      {"model.hidden_size", config.model.hidden_size},
      {"the tokens of a micro-batch (training.micro_batch_size times data.seq_len)", micro_batch_tokens(config)}};
  for (const auto& [name, size] : dimensions) {
    CHECK_INPUT(size % kUnit == 0,
                "precision.lm_head is {}, which needs multiples of {}, but {} is {}; {} would work, or bfloat16",
                traits(lm_head).name, kUnit, name, size, (size + kUnit - 1) / kUnit * kUnit);
  }
}

// Refuses sequence lengths for which the attention on GPUs has no kernels.
void check_lengths_on_gpu(const Config& config) {
  for (const StageConfig& stage : stage_configs(config)) {
    CHECK_INPUT(stage.data.seq_len > 1,
                "data.seq_len is 1{}, expected at least 2 on GPUs, where the backward of attention does not support "
                "single tokens",
                stage.stage.number > 0 ? fmt::format(" in stage {}", stage.stage.number) : "");
  }
  if (config.parallel.context_parallel == 1) return;
  const std::string who_asks = fmt::format(", which consist of whole tiles of {} tokens on GPUs", kContextChunkUnit);
  for (const Config& stage : stage_configs(config)) check_chunks(stage, kContextChunkUnit, who_asks);
}

void check_datasets(const std::vector<DatasetSource>& sources, const char* key, bool needed) {
  CHECK_INPUT(!needed || !sources.empty(), "{} names no dataset, expected at least one {{path: PREFIX}}", key);
  const double total = std::accumulate(sources.begin(), sources.end(), 0.0,
                                       [](double sum, const DatasetSource& source) { return sum + source.weight; });
  CHECK_INPUT(sources.empty() || total > 0, "the weights of {} are all 0, expected at least one above 0", key);
  std::set<std::string> names;
  for (const DatasetSource& source : sources) {
    CHECK_INPUT(source.name.empty() || names.insert(source.name).second,
                "{} has two datasets with the name {}, expected a different name for each", key, source.name);
  }
}

}  // namespace

void validate(const Config& run, int64_t ranks, Purpose purpose) {
  CHECK_INPUT(run.trace.step <= run.training.steps, "logging.trace.step is {}, expected at most training.steps {}",
              run.trace.step, run.training.steps);
  for (const StageConfig& stage : stage_configs(run)) {
    try {
      validate_stage(stage, ranks, purpose);
    } catch (const InputError& error) {
      if (run.stages.empty()) throw;
      ErrorList errors;
      for_each_sentence(error.what(), [&](const std::string& sentence) {
        errors.add(fmt::format("stage {}: {}", stage.stage.number, sentence));
      });
      errors.raise();
    }
  }
}

void validate_stage(const StageConfig& config, int64_t ranks, Purpose purpose) {
  // Each group of checks assumes that the group before it found nothing.
  ErrorList errors;
  errors.collect([&] { check_model(config); });
  errors.collect([&] { check_datasets(config.data.train, "data.train", purpose == Purpose::kTrain); });
  errors.collect([&] { check_datasets(config.data.validation, "data.validation", purpose == Purpose::kEvaluate); });
  errors.collect([&] { check_schedule(config); });
  errors.collect([&] { check_optimizer(config.optimizer); });
  errors.raise();
  const int64_t unit = chunk_unit(config);
  errors.collect([&] { check_batch(config, ranks); });
  errors.collect([&] {
    check_chunks(config, unit,
                 unit == 1
                     ? ""
                     : fmt::format(", and {} scales {} tokens at a time", traits(config.precision.linear).name, unit));
  });
  errors.raise();
  if (!config.model_complete()) return;
  errors.collect([&] { check_division(config, ranks); });
  errors.collect([&] { check_pipeline_stages(config); });
  errors.raise();
  errors.collect([&] { check_linear_shapes(config); });
  errors.collect([&] { check_lm_head_shape(config); });
  errors.raise();
}

void check_gpu(const GpuInfo& gpu, const PrecisionConfig& precision) {
  if (has_kernels_for(gpu)) return;
  const bool has_fp8 = gpu.compute_major > 8 || (gpu.compute_major == 8 && gpu.compute_minor >= 9);
  std::string lacks;
  if (is_fp8(precision.linear) && !has_fp8) {
    lacks = fmt::format(", which has no FP8 for the linears of precision.linear {}", traits(precision.linear).name);
  } else if (is_fp8(precision.lm_head) && !has_fp8) {
    lacks = fmt::format(", which has no FP8 for precision.lm_head {}", traits(precision.lm_head).name);
  }
  throw InputError(
      fmt::format("the GPU {} has compute capability {}.{}{}, but this program only has kernels for 9.0; use an H100 "
                  "or H200, or device: cpu, which supports bfloat16 and every FP8 recipe",
                  gpu.name, gpu.compute_major, gpu.compute_minor, lacks));
}

void adopt_model(Config& config, const ModelConfig& from_weights, const std::string& path) {
  const auto stated = shape_to_json<nlohmann::ordered_json>(config.model);
  const auto found = shape_to_json<nlohmann::ordered_json>(from_weights);
  for (const std::string& field : config.model_fields) {
    CHECK_INPUT(stated.at(field) == found.at(field), "{} has {} {}, but the config's model.{} is {}, expected the same",
                path, field, found.at(field).dump(), field, stated.at(field).dump());
  }
  config.model = from_weights;
  config.model_fields = model_field_names();
}

void resolve_device(Config& config, Device device) {
  const bool is_cuda = device == Device::kCuda;
  if (!config.compute_given) config.precision.compute = is_cuda ? DType::kBFloat16 : DType::kFloat32;
  CHECK_INPUT(!is_cuda || config.precision.compute == DType::kBFloat16,
              "precision.compute is {}, expected bfloat16 on GPUs, the only dtype of their attention kernels (float32 "
              "needs device: cpu)",
              name_of(kFloatType, config.precision.compute));
  if (is_cuda) check_lengths_on_gpu(config);
  config.compute_given = true;
  config.device = is_cuda ? DeviceChoice::kCuda : DeviceChoice::kCpu;
}

}  // namespace octavo

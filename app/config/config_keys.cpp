#include "app/config/config_keys.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "app/config/config_names.h"
#include "app/config/config_values.h"
#include "app/config/stages.h"
#include "core/error.h"
#include "data/tokenizer_identity.h"
#include "model/architecture/model_fields.h"

namespace octavo {

namespace {

using namespace config_names;
using OrderedJson = nlohmann::ordered_json;

// These limits ensure that products of sizes (samples, bytes) do not overflow 64 bits, like the limits in
// model/architecture/config.h.
constexpr int64_t kMaxAmaxHistory = 1 << 16;
constexpr int64_t kMaxAmaxMargin = 64;
constexpr int64_t kMaxBatch = 1 << 24;
constexpr int64_t kMaxRanks = 1 << 20;
constexpr int64_t kMaxWindow = 100000;
constexpr int64_t kMaxGuardSteps = 1000;
constexpr int64_t kMaxReaderThreads = 256;

// Returns the rule for a member whose type alone determines the rule.
Flag rule_of(const bool&) { return {}; }
PathText rule_of(const std::string&) { return {}; }
Seed rule_of(const uint64_t&) { return {}; }

// Makes a key. `get` returns the member that the rule reads and writes, given a Config or a const Config.
template <typename Get, typename Rule>
ConfigKey make_key(KeyClass key_class, const std::string& name, Get get, Rule rule, const char* unit,
                   const char* sentence) {
  ConfigKey key{.name = name,
                .expected = rule.expected(),
                .fallback = {},
                .unit = unit,
                .sentence = sentence,
                .key_class = key_class};
  key.read = [get, rule](const ConfigNode& found, Config& config) { return rule.read(found, get(config)); };
  key.write = [get, rule](const Config& config) { return std::make_optional<OrderedJson>(rule.write(get(config))); };
  return key;
}

// Passes the whole Config to rules that read and write several members.
constexpr auto kWhole = [](auto& config) -> auto& { return config; };

struct PresetRule {
  std::string expected() const { return fmt::format("one of {}", fmt::join(model_preset_names(), ", ")); }
  bool read(const ConfigNode& found, Config& config) const {
    const std::vector<std::string> names = model_preset_names();
    if (found.kind == ConfigNode::Kind::kNull) return true;
    if (std::ranges::find(names, found.text) == names.end()) return false;
    config.preset = found.text;
    config.model = model_preset(config.preset);
    return true;
  }
  OrderedJson write(const Config& config) const { return OptionalText{}.write(config.preset); }
};

struct BetasRule {
  std::string expected() const { return "two numbers [beta1, beta2], each at least 0 and below 1 as float32"; }
  bool read(const ConfigNode& found, Config& config) const {
    if (found.kind != ConfigNode::Kind::kList || found.children.size() != 2) return false;
    double* const targets[] = {&config.optimizer.beta1, &config.optimizer.beta2};
    for (size_t i = 0; i < 2; ++i) {
      if (!kBelowOne.read(found.children[i], *targets[i]))
        refuse_value(found.children[i], "optimizer.betas", expected());
    }
    return true;
  }
  OrderedJson write(const Config& config) const {
    return OrderedJson::array({config.optimizer.beta1, config.optimizer.beta2});
  }
};

// A dtype, or empty for the default of the device.
struct ComputeRule : OneOf<DType> {
  bool read(const ConfigNode& found, Config& config) const {
    config.compute_given = found.kind != ConfigNode::Kind::kNull;
    return !config.compute_given || OneOf::read(found, config.precision.compute);
  }
  OrderedJson write(const Config& config) const {
    return config.compute_given ? OneOf::write(config.precision.compute) : OrderedJson(nullptr);
  }
};

// An id, `auto` for the id that the token files' sidecars name, or null for none.
struct DocumentTokenRule {
  std::optional<int32_t> DataConfig::*id;
  bool DataConfig::*is_auto;

  std::string expected() const { return "auto, null or " + kOptionalToken.expected(); }
  bool read(const ConfigNode& found, DataConfig& data) const {
    // An empty value is refused, because it might mean auto.
    if (found.kind == ConfigNode::Kind::kNull && found.text.empty()) return false;
    data.*is_auto = found.kind == ConfigNode::Kind::kScalar && found.text == "auto";
    if (!(data.*is_auto)) return kOptionalToken.read(found, data.*id);
    (data.*id).reset();
    return true;
  }
  OrderedJson write(const DataConfig& data) const {
    return data.*is_auto ? OrderedJson("auto") : kOptionalToken.write(data.*id);
  }
};

Integers rule_of_field(int64_t most, int64_t) { return {1, most}; }
Numbers rule_of_field(int64_t, double) { return kPositive; }
Flag rule_of_field(int64_t, bool) { return {}; }
OptionalSection rule_of_field(int64_t, const std::optional<RopeScaling>&) { return {}; }

template <typename Field, typename Value>
std::string field_fallback(const Field& field, const Value& value) {
  if (field.presence == Presence::kDerived) return "derived from the other fields";
  if constexpr (!std::is_arithmetic_v<Value>)
    return "the preset's, or none";
  else
    return value == Value{} && std::is_integral_v<Value> && !std::is_same_v<Value, bool>
               ? "the preset's"
               : "the preset's, or " + OrderedJson(value).dump();
}

bool states(const Config& config, const std::string& field) {
  const std::vector<std::string>& fields = config.model_fields;
  return config.model_complete() || std::ranges::find(fields, field) != fields.end();
}

template <typename Struct, typename Get, typename Field, typename Value>
ConfigKey make_field_key(const char* section, Get get_struct, const Field& field, const Value& value) {
  const auto get = [ get_struct, member = std::get<Value Struct::*>(field.member) ](auto& config) -> auto& {
    return get_struct(config).*member;
  };
  ConfigKey key = make_key(KeyClass::kModel, fmt::format("{}.{}", section, field.name), get,
                           rule_of_field(field.most, value), "", field.sentence);
  key.fallback = field_fallback(field, value);
  return key;
}

// Adds the keys of model.rope_scaling. They are read only if the section exists; the key model.rope_scaling, which
// comes first, has created it by then.
void add_rope_scaling(std::vector<ConfigKey>& keys) {
  const auto get = [](auto& config) -> auto& { return *config.model.rope_scaling; };
  static constexpr RopeScaling defaults;
  for_each_field(defaults, [&](const auto& field, const auto& value) {
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(value)>>) {
      keys.push_back(make_field_key<RopeScaling>("model.rope_scaling", get, field, value));
      keys.back().write = [write = keys.back().write](const Config& config) {
        return config.model.rope_scaling && states(config, "rope_scaling") ? write(config) : std::nullopt;
      };
    }
  });
}

void add_shape(std::vector<ConfigKey>& keys) {
  const auto get = [](auto& config) -> auto& { return config.model; };
  static constexpr ModelConfig defaults;
  for_each_field(defaults, [&](const auto& field, const auto& value) {
    using Value = std::decay_t<decltype(value)>;
    ConfigKey key = make_field_key<ModelConfig>("model", get, field, value);
    key.read = [read = key.read, name = field.name](const ConfigNode& found, Config& config) {
      config.model_fields.emplace_back(name);
      return read(found, config);
    };
    key.write = [write = key.write, name = field.name](const Config& config) {
      return states(config, name) ? write(config) : std::nullopt;
    };
    keys.push_back(std::move(key));
    if constexpr (std::is_same_v<Value, std::optional<RopeScaling>>) add_rope_scaling(keys);
  });
}

// Adds the keys of one section. Each key is a member of one struct in the Config, and has the section's class unless
// changed.
template <typename Struct>
class SectionKeys {
 public:
  SectionKeys(std::vector<ConfigKey>& keys, KeyClass key_class, const char* name, Struct Config::*section)
      : keys_(keys), key_class_(key_class), name_(name), section_(section) {}

  template <typename Value, typename Rule>
  ConfigKey& add(const char* name, Value Struct::*member, Rule rule, const char* unit, const char* sentence) {
    const auto get = [ section = section_, member ](auto& config) -> auto& { return config.*section.*member; };
    return keys_.emplace_back(make_key(key_class_, fmt::format("{}.{}", name_, name), get, rule, unit, sentence));
  }
  template <typename Value>
  ConfigKey& add(const char* name, Value Struct::*member, const char* unit, const char* sentence) {
    return add(name, member, rule_of(Value{}), unit, sentence);
  }

 private:
  std::vector<ConfigKey>& keys_;
  KeyClass key_class_;
  const char* name_;
  Struct Config::*section_;
};

// Each row of the tables below gives a key's name, member, rule, unit and description. The rows are longer than a line
// of code.
// clang-format off

void add_model(std::vector<ConfigKey>& keys) {
  keys.push_back(make_key(KeyClass::kCarriesOut, "model.preset", kWhole, PresetRule{}, "", "Shape of a published model. The fields below override single values of it."));
  add_shape(keys);
  const auto init_from = [](auto& config) -> auto& { return config.init_from; };
  keys.push_back(make_key(KeyClass::kModel, "model.init_from", init_from, OptionalPath{}, "", "Hugging Face directory or checkpoint to start from. Its shape is used unless the config gives one, which must then agree, except that a given rope_theta or rope_scaling replaces that of the model."));
  keys.back().compared = Compared::kAtStart;
}

const std::vector<std::string> kDatasetKeys{"path", "name", "weight", "max_epochs"};

void add_data(std::vector<ConfigKey>& keys) {
  using Data = DataConfig;
  SectionKeys<Data> data(keys, KeyClass::kData, "data", &Config::data);
  data.add("train", &Data::train, Datasets{"data.train"}, "", "Datasets to train on, mixed by weight. path is a PREFIX, a list of them or a folder; name is used in logs and metrics; max_epochs limits the epochs (0 means unlimited).").item_keys = kDatasetKeys;
  keys.back().compared = Compared::kByEffect;
  data.add("validation", &Data::validation, Datasets{"data.validation"}, "", "Datasets of the validation loss. Each validation uses the same windows, spread over each dataset, and reports a loss per dataset.").carries_out().item_keys = kDatasetKeys;
  data.add("seq_len", &Data::seq_len, Integers{1, kMaxSeqLen}, "tokens", "Sequence length: number of tokens that the model sees at once.");
  data.add("shuffle", &Data::shuffle, OneOf{kShuffle}, "", "Order of the training windows. lcg draws a new pseudo-random order every epoch; none keeps the order of the files.");
  const auto whole = [](auto& config) -> auto& { return config.data; };
  keys.push_back(make_key(KeyClass::kData, "data.bos_id", whole, DocumentTokenRule{&Data::bos_id, &Data::bos_auto}, "token", "Token inserted before every document. auto uses the id in the token files' sidecars (PREFIX.json), and null inserts none."));
  keys.back().fallback = "auto";
  keys.push_back(make_key(KeyClass::kData, "data.eos_id", whole, DocumentTokenRule{&Data::eos_id, &Data::eos_auto}, "token", "Token inserted after every document. auto uses the id in the token files' sidecars (PREFIX.json), and null inserts none."));
  keys.back().fallback = "auto";
  data.add("document_mask", &Data::document_mask, "", "Whether tokens attend only within their own document. The first token of a document is then no target.");
  data.add("on_max_epochs", &Data::on_max_epochs, OneOf{kOnMaxEpochs}, "", "What happens if a dataset exceeds its max_epochs: warn while training, or error before the run starts.").carries_out();
  data.add("allow_overlap", &Data::allow_overlap, "", "Whether data.train and data.validation may share a file or its content, and whether data.train may name a file twice, in one dataset or in two. Otherwise such a run is refused.").carries_out();
  data.add("skip", &Data::skip, SampleRanges{"data.skip"}, "samples", "Ranges [A, B] of global samples that training skips: samples A to B-1.").carries_out();
  data.add("resume_from_sample", &Data::resume_from_sample, OptionalInteger<int64_t>{{0, kMaxSample}}, "samples", "Global sample at which the data continues, whatever the checkpoint says. It applies once, and not again when that run resumes.").carries_out();
  data.add("reader_threads", &Data::reader_threads, Integers{1, kMaxReaderThreads}, "", "Number of threads per rank that read samples ahead.").carries_out();
  data.add("tokenizer", &Data::tokenizer, "", "Tokenizer for text in and out, recorded in checkpoints: byte, or a Hugging Face tokenizer.json or the folder that has one. auto uses that of the checkpoint or model.init_from, the one that all token files name if that of model.init_from is unknown, and else byte. none says that it is unknown.").carries_out();
  keys.back().expected = "auto, byte, none, or the path of a tokenizer.json or its folder";
  keys.back().fallback = kAutoTokenizer;
  data.add("seed", &Data::seed, "", "Seed of the order of the windows.");
}

void add_training(std::vector<ConfigKey>& keys) {
  using Training = TrainingConfig;
  SectionKeys<Training> training(keys, KeyClass::kTraining, "training", &Config::training);
  training.add("steps", &Training::steps, Integers{1, kMaxSteps}, "steps", "Optimizer steps of the whole run, restarts included.").of_schedule();
  training.add("global_batch_size", &Training::global_batch_size, Integers{1, kMaxBatch}, "sequences", "Sequences per step, over all ranks.").of_schedule();
  training.add("batch_size_warmup", &Training::batch_size_warmup, BatchPhases{"training.batch_size_warmup", {1, kMaxBatch}, {1, kMaxSteps}}, "sequences", "Smaller batch sizes at the start of the run, each for a number of steps. After these steps the batch size is global_batch_size.").of_schedule().item_keys = {"batch_size", "steps"};
  training.add("micro_batch_size", &Training::micro_batch_size, Integers{1, kMaxBatch}, "sequences", "Sequences per rank and forward pass. Gradients are accumulated over the micro-batches of a step.").carries_out();
  training.add("seed", &Training::seed, "", "Seed of the initial weights.");
  training.add("deterministic", &Training::deterministic, "", "Whether a run on GPUs repeats bit for bit, at some cost in speed.").carries_out();
  training.add("z_loss", &Training::z_loss, kNonNegative, "", "Coefficient of the z-loss, the mean squared log of the softmax normalizer, which is added to the loss. 1e-4 keeps logits from drifting. 0 disables it.");
  training.add("max_skipped_steps", &Training::max_skipped_steps, Integers{0, kMaxSteps}, "steps", "Maximum number of skipped steps in a row (loss or gradient norm not finite, or a spike), and of rollbacks to one checkpoint. One more ends the run, and the last good state is saved.").carries_out();
  training.add("locate_nonfinite", &Training::locate_nonfinite, "", "Whether the first step that is skipped because its loss or gradient norm is not finite is computed once more, to log the first operation whose result is not finite. This changes no result.").carries_out();
  training.add("on_loss_spike", &Training::on_loss_spike, OneOf{kOnLossSpike}, "", "What happens at a loss spike. warn only logs it, skip skips the step, and rollback returns to the last checkpoint and skips the samples of the spike.");
  training.add("loss_spike_z", &Training::loss_spike_z, kAtLeastOne, "standard deviations", "A loss is a spike if it exceeds the mean of the window by more than this number of standard deviations. The same limit marks spikes of the gradient norm.").carries_out();
  training.add("loss_spike_window", &Training::loss_spike_window, Integers{0, kMaxWindow}, "steps", "Number of previous losses and gradient norms that a new one is compared with to detect spikes. 0 disables the detection.").carries_out();
  training.add("corruption_check_every", &Training::corruption_check_every, Integers{0, kMaxSteps}, "steps", "Steps between checks for silent corruption, which compare replicas and, on the CPU and in deterministic runs, the results of a micro-batch computed twice. 0 disables them.").carries_out();
  training.add("on_corruption", &Training::on_corruption, OneOf{kOnCorruption}, "", "What happens when the check for silent corruption finds a difference. stop ends the run, exclude also keeps the launchers from using the machine, and warn continues but saves no state whose replicas differ.").carries_out();
}

void add_optimizer(std::vector<ConfigKey>& keys) {
  using Optimizer = OptimizerConfig;
  SectionKeys<Optimizer> optimizer(keys, KeyClass::kOptimizer, "optimizer", &Config::optimizer);
  optimizer.add("type", &Optimizer::type, OneOf{kOptimizerType}, "", "AdamW, or Muon for the matrices of the blocks and AdamW for tables and norms. Learning rates and weight decay carry over between them.");
  optimizer.add("lr", &Optimizer::lr, kPositive, "", "Peak learning rate.").of_schedule();
  optimizer.add("min_lr_ratio", &Optimizer::min_lr_ratio, kUnitInterval, "", "Learning rate of the last step divided by optimizer.lr.").of_schedule();
  optimizer.add("warmup_steps", &Optimizer::warmup_steps, Integers{0, kMaxSteps}, "steps", "Steps of linear warm-up. 0 disables it.").of_schedule();
  optimizer.add("schedule", &Optimizer::schedule, OneOf{kSchedule}, "", "Learning rate after the warm-up. wsd is constant until a decay at the end; inverse_sqrt falls with the square root of the step.").of_schedule();
  optimizer.add("decay_steps", &Optimizer::decay_steps, Integers{0, kMaxSteps}, "steps", "Steps of wsd's decay. 0 means a tenth of the run.").of_schedule();
  optimizer.add("decay_type", &Optimizer::decay_type, OneOf{kDecayType}, "", "Shape of the decay of the wsd schedule. linear lowers the learning rate linearly. sqrt lowers it in proportion to one minus the square root of the completed share of the decay.").of_schedule();
  optimizer.add("momentum", &Optimizer::momentum, kBelowOne, "", "Muon's momentum: the factor by which the momentum decays per step.");
  keys.push_back(make_key(KeyClass::kOptimizer, "optimizer.betas", kWhole, BetasRule{}, "", "AdamW's decay rates of the first and second moment."));
  optimizer.add("eps", &Optimizer::eps, kPositive, "", "Number that AdamW adds to the square root of the second moment.");
  optimizer.add("weight_decay", &Optimizer::weight_decay, kNonNegative, "", "Decoupled weight decay of tensors with two or more dimensions.");
  optimizer.add("grad_clip", &Optimizer::grad_clip, kNonNegative, "", "Largest global gradient norm; larger gradients are scaled down. 0 disables clipping.");
  optimizer.add("state_dtype", &Optimizer::state_dtype, OneOf{kStateType}, "", "Dtype of the moments and of Muon's momentum. float8 stores the first moment in FP8 and the rest in bfloat16.");
  optimizer.add("ema_decay", &Optimizer::ema_decay, kBelowOne, "", "Decay per step of the moving average of the weights, such as 0.9999. 0 disables the average.");
}

void add_precision(std::vector<ConfigKey>& keys) {
  using Precision = PrecisionConfig;
  SectionKeys<Precision> precision(keys, KeyClass::kPrecision, "precision", &Config::precision);
  keys.push_back(make_key(KeyClass::kPrecision, "precision.compute", kWhole, ComputeRule{OneOf{kFloatType}}, "", "Dtype of activations and of weights in matmuls. GPUs support bfloat16 only."));
  keys.back().fallback = "bfloat16 on GPUs, float32 on the CPU";
  precision.add("linear", &Precision::linear, OneOf{kLinear}, "", "Number format of the linears (qkv, o, gate_up, down). With bfloat16 they compute in the dtype of precision.compute.");
  precision.add("lm_head", &Precision::lm_head, OneOf{kLmHead}, "", "FP8 in the matmuls of lm_head: bfloat16 uses it in none of them (they run in precision.compute), fp8_backward only in backward, and fp8 in forward and backward.");
  precision.add("bf16_first_layers", &Precision::bf16_first_layers, Integers{0, kMaxLayers}, "blocks", "Number of first blocks whose linears do not use FP8.");
  precision.add("bf16_last_layers", &Precision::bf16_last_layers, Integers{0, kMaxLayers}, "blocks", "Number of last blocks whose linears do not use FP8.");
  precision.add("fp8_all_gather", &Precision::fp8_all_gather, "", "Whether sharded weights are gathered in FP8 if the recipe supports it.").carries_out();
  precision.add("reduce", &Precision::reduce, OneOf{kFloatType}, "", "Dtype in which gradients are sent between ranks. With precision.compute float32 they are sent in float32.");
  precision.add("gradient_format", &Precision::gradient_format, OneOf{kFloat8Type}, "", "FP8 format of output gradients. Activations and weights are e4m3.");
  precision.add("fast_accumulation", &Precision::fast_accumulation, OneOf{kFastAccumulation}, "", "FP8 matmuls that use the tensor cores' fast accumulation: those of forward, all or none. fp8_blockwise never uses it, nor does the gradient of lm_head's input.");
  precision.add("amax_history", &Precision::amax_history, Integers{1, kMaxAmaxHistory}, "steps", "fp8_delayed only: number of steps whose largest amax determines the scale.");
  precision.add("amax_margin", &Precision::amax_margin, Integers{0, kMaxAmaxMargin}, "powers of 2", "fp8_delayed only: the scale is divided by 2 to this power.");
  using Guard = PrecisionGuardConfig;
  SectionKeys<Guard> guard(keys, KeyClass::kCarriesOut, "precision.guard", &Config::precision_guard);
  guard.add("every", &Guard::every, Integers{0, kMaxSteps}, "steps", "Steps between comparisons of FP8 with bfloat16. 0 disables them.");
  guard.add("steps", &Guard::steps, Integers{1, kMaxGuardSteps}, "steps", "Steps of a comparison, taken in bfloat16 and in FP8 from the same state and samples.");
  guard.add("tolerance", &Guard::tolerance, kPositive, "", "Largest accepted mean difference between the losses in FP8 and in bfloat16, relative to their mean.");
  guard.add("action", &Guard::action, OneOf{kOnPrecisionGap}, "", "What happens if the difference exceeds the tolerance. warn only logs it, and bfloat16 rolls back to the state before the comparison and continues in bfloat16.").key_class = KeyClass::kPrecision;
  guard.add("fallback_steps", &Guard::fallback_steps, Integers{1, kMaxSteps}, "steps", "Number of steps that a fallback to bfloat16 lasts before FP8 is used again.");
}

void add_parallel(std::vector<ConfigKey>& keys) {
  using Parallel = ParallelConfig;
  SectionKeys<Parallel> parallel(keys, KeyClass::kCarriesOut, "parallel", &Config::parallel);
  parallel.add("data_parallel_shard", &Parallel::data_parallel_shard, RanksOrRest{1, kMaxRanks}, "ranks", "Ranks over which one replica of the parameters and optimizer state is sharded (FSDP). -1 means all ranks that the other axes leave.");
  parallel.add("data_parallel_replicate", &Parallel::data_parallel_replicate, RanksOrRest{1, kMaxRanks}, "ranks", "Number of replicas of the sharded state (HSDP). -1 uses all ranks that data_parallel_shard leaves. If data_parallel_shard is -1 too, -1 means one replica per node if memory allows, or else one replica in total.");
  parallel.add("tensor_parallel", &Parallel::tensor_parallel, Integers{1, kMaxRanks}, "ranks", "Ranks that divide each layer, with sequence parallelism.");
  parallel.add("context_parallel", &Parallel::context_parallel, Integers{1, kMaxRanks}, "ranks", "Ranks among which each sequence is divided. Weights, gradients and optimizer states are sharded over these ranks and those of data_parallel_shard together.");
  parallel.add("pipeline_parallel", &Parallel::pipeline_parallel, Integers{1, kMaxRanks}, "ranks", "Pipeline stages, among which the blocks of the model are divided. The first stage also has the embedding, and the last one the final norm and lm_head.");
  parallel.add("pipeline_layers", &Parallel::pipeline_layers, IntegerList{"parallel.pipeline_layers", Integers{1, kMaxLayers}}, "blocks", "Number of blocks of each pipeline stage. With pipeline_chunks, the numbers of the first chunks of all stages come first, then those of the second chunks. If it is empty, the stages get about equal work, in which lm_head counts.");
  parallel.add("pipeline_schedule", &Parallel::pipeline_schedule, OneOf{kPipelineSchedule}, "", "Order in which pipeline stages compute. interleaved divides each stage into pipeline_chunks. zero_bubble computes gradients of weights while a stage would be idle, which takes more memory.");
  parallel.add("pipeline_chunks", &Parallel::pipeline_chunks, Integers{1, kMaxLayers}, "chunks", "Number of chunks of consecutive blocks of each pipeline stage with the schedule interleaved. The blocks are dealt to the stages in turn, which divides the time of waiting for other stages by the number of chunks.");
  parallel.add("reshard_after_forward", &Parallel::reshard_after_forward, OneOf{kAutoBool}, "", "Whether gathered weights are freed after forward and gathered again in backward. auto frees them if they do not all fit.");
  parallel.add("accumulate_unsharded", &Parallel::accumulate_unsharded, OneOf{kAutoBool}, "", "Whether full gradients are kept over the micro-batches and reduced once per step. auto keeps them if they fit, except on CPUs and in deterministic runs.");
  parallel.add("nccl_memory", &Parallel::nccl_memory, OneOf{kNcclMemory}, "", "How NCCL accesses tensors: through its own buffers (plain), or directly in registered memory. auto registers the shard axis on one machine.");
  parallel.add("timeout_s", &Parallel::timeout_s, kSecondsOrNever, "seconds", "Time after which a collective that does not complete ends the run. 0 disables it.");
}

void add_activation_checkpointing(std::vector<ConfigKey>& keys) {
  using Checkpointing = ActivationCheckpointing;
  SectionKeys<Checkpointing> checkpointing(keys, KeyClass::kCarriesOut, "activation_checkpointing", &Config::activation_checkpointing);
  checkpointing.add("mode", &Checkpointing::mode, OneOf{kMode}, "", "Activations that backward recomputes. auto recomputes as few as memory allows.");
  checkpointing.add("ratio", &Checkpointing::ratio, kUnitInterval, "", "Mode block only: share of the blocks that are recomputed completely.");
}

void add_outputs(std::vector<ConfigKey>& keys) {
  SectionKeys<CheckpointConfig> checkpoint(keys, KeyClass::kCarriesOut, "checkpoint", &Config::checkpoint);
  checkpoint.add("dir", &CheckpointConfig::dir, "", "Directory of the checkpoints, with one folder per saved step.").fallback = "checkpoints in logging.dir";
  checkpoint.add("every", &CheckpointConfig::every, Integers{0, kMaxSteps}, "steps", "Steps between checkpoints. 0 saves only at the end and after a signal.");
  checkpoint.add("every_minutes", &CheckpointConfig::every_minutes, kMinutesOrNever, "minutes", "Minutes from the start of a save until the next one is due, by rank 0's clock. 0 disables it.");
  checkpoint.add("keep", &CheckpointConfig::keep, Integers{0, kMaxSteps}, "checkpoints", "Number of newest checkpoints that are kept. 0 keeps all.");
  checkpoint.add("keep_every", &CheckpointConfig::keep_every, Integers{0, kMaxSteps}, "steps", "Checkpoints whose steps are multiples of this number are never removed. 0 disables it.");
  checkpoint.add("max_failed_saves", &CheckpointConfig::max_failed_saves, Integers{0, kMaxSteps}, "saves", "Number of consecutive failed saves that ends the run. 0 means the same as 1.");
  checkpoint.add("async", &CheckpointConfig::async, "", "Whether checkpoints are written in the background while training continues.");
  checkpoint.add("in_memory", &CheckpointConfig::in_memory, "", "Whether the newest state is also kept in host memory that outlives the processes, so that a restart need not read the disk. With several machines another machine keeps a copy too.");
  checkpoint.add("in_memory_every", &CheckpointConfig::in_memory_every, Integers{1, kMaxSteps}, "steps", "Steps between saves in memory.");
  checkpoint.add("command", &CheckpointConfig::command, OptionalText{}, "", "Shell command that rank 0's machine runs for each complete checkpoint while training continues, such as an evaluation. OCTAVO_CHECKPOINT, OCTAVO_STEP, OCTAVO_LOSS and OCTAVO_RUN name the checkpoint. Numbers that it prints as a JSON object become metrics.");
  checkpoint.add("command_timeout_s", &CheckpointConfig::command_timeout_s, kSecondsOrNever, "seconds", "Time after which a checkpoint.command is ended. 0 disables it.");
  checkpoint.add("resume", &CheckpointConfig::resume, "", "Checkpoint to resume: auto for the newest complete one of the directory if there is one, never, or the path of a checkpoint or run folder at which the run begins. A run that began at the path and has saved checkpoints resumes those.");
  keys.back().expected = "auto, never, or the path of a checkpoint or a run folder";
  checkpoint.add("allow_changes", &CheckpointConfig::allow_changes, SomeOf<KeyClass>{{kAllowedChange}, "checkpoint.allow_changes"}, "", "Classes of keys in which a resumed run may differ from the run that saved its checkpoint. A change of a key of another class is refused. If the class data is allowed and the samples differ, the run begins at the first sample of the data.");
  SectionKeys<LoggingConfig> logging(keys, KeyClass::kCarriesOut, "logging", &Config::logging);
  logging.add("every", &LoggingConfig::every, Integers{1, kMaxSteps}, "steps", "Steps between logged steps.");
  logging.add("dir", &LoggingConfig::dir, "", "Folder of the run: metrics.jsonl, the log, TensorBoard events and, by default, checkpoints.").fallback = "runs/ and the name of the config file without .yaml";
  logging.add("tensorboard", &LoggingConfig::tensorboard, "", "Whether TensorBoard event files are written.");
  logging.add("prometheus", &LoggingConfig::prometheus, OptionalPath{}, "", "File that always has the last logged step in Prometheus' text format, for the textfile collector of its node exporter, which requires a name ending in .prom.");
  logging.add("fp8_stats_every", &LoggingConfig::fp8_stats_every, Integers{0, kMaxSteps}, "steps", "Number of steps from one with statistics of the FP8 casts to the next. Steps with statistics are always logged. 0 disables the statistics.");
  logging.add("slow_rank_every", &LoggingConfig::slow_rank_every, Integers{0, kMaxSteps}, "steps", "Steps between measurements of the time that each rank spends in collectives, which reveal a slow rank. 0 disables them.");
  logging.add("color", &LoggingConfig::color, OneOf{kLogColor}, "", "Whether the console has colors. auto uses colors on a terminal unless NO_COLOR is set.");
  logging.add("alert_command", &LoggingConfig::alert_command, OptionalText{}, "", "Shell command that rank 0's machine runs for warnings and for the error that ends the run, such as a message to a webhook. OCTAVO_EVENT, OCTAVO_MESSAGE, OCTAVO_STEP and OCTAVO_RUN tell what happened. What happens within a minute is told together.");
  logging.add("alert_command_timeout_s", &LoggingConfig::alert_command_timeout_s, kAtLeastOne, "seconds", "Time after which a logging.alert_command is ended.");
  SectionKeys<TraceConfig> trace(keys, KeyClass::kCarriesOut, "logging.trace", &Config::trace);
  trace.add("step", &TraceConfig::step, Integers{0, kMaxSteps}, "", "Step whose trace is written to trace_step_N.json in logging.dir, for Perfetto and Chrome. 0 disables it.");
  SectionKeys<ValidationConfig> validation(keys, KeyClass::kCarriesOut, "validation", &Config::validation);
  validation.add("every", &ValidationConfig::every, Integers{0, kMaxSteps}, "steps", "Steps between validations. 0 disables them.");
  validation.add("batches", &ValidationConfig::batches, Integers{1, kMaxSteps}, "batches", "Global batches per validation.");
  SectionKeys<PlanConfig> plan(keys, KeyClass::kCarriesOut, "plan", &Config::plan);
  plan.add("gpus", &PlanConfig::gpus, Integers{0, kMaxRanks}, "GPUs", "Number of GPUs that octavo plan assumes without --gpus. 0 means the size of the mesh. A run ignores this key.");
  plan.add("machine", &PlanConfig::machine, "", "Machine that octavo plan assumes without --machine. A run ignores this key.");
  keys.back().expected = "h200, h100, or the path of a file that octavo doctor --save wrote";
  const auto device = [](auto& config) -> auto& { return config.device; };
  keys.push_back(make_key(KeyClass::kCarriesOut, "device", device, OneOf{kDevice}, "", "Device to train on. auto uses a GPU if there is one."));
}

// clang-format on

std::vector<ConfigKey> make_keys() {
  std::vector<ConfigKey> keys;
  for (const auto add : {add_model, add_data, add_training, add_optimizer, add_precision, add_parallel,
                         add_activation_checkpointing, add_outputs}) {
    add(keys);
  }
  keys.push_back(stages_key(keys));  // The last key, because its values are applied on top of all others.
  const Config defaults;
  for (ConfigKey& key : keys) {
    if (!key.fallback.empty()) continue;
    const OrderedJson value = key.write(defaults).value_or(nullptr);
    key.fallback = value.is_null() || value == OrderedJson::array() ? "none" : yaml_text(value);
  }
  return keys;
}

}  // namespace

const std::vector<ConfigKey>& config_keys() {
  static const std::vector<ConfigKey> keys = make_keys();
  return keys;
}

}  // namespace octavo

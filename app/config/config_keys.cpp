#include "app/config/config_keys.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "app/config/config_names.h"
#include "app/config/config_values.h"
#include "app/config/stages.h"
#include "core/error.h"
#include "model/model_fields.h"

namespace octavo {

namespace {

using namespace config_names;
using OrderedJson = nlohmann::ordered_json;

// Upper limits keep every product of sizes (samples, bytes) inside 64 bits, as those of model/config.h do.
constexpr int64_t kMaxAmaxHistory = 1 << 16;
constexpr int64_t kMaxAmaxMargin = 64;
constexpr int64_t kMaxBatch = 1 << 24;
constexpr int64_t kMaxRanks = 1 << 20;
constexpr int64_t kMaxChunks = 64;
constexpr int64_t kMaxWindow = 100000;
constexpr int64_t kMaxGuardSteps = 1000;
constexpr int64_t kMaxMultiprocessors = 1024;
constexpr int64_t kMaxReaderThreads = 256;

// The rule of a member that its type alone gives.
Flag rule_of(const bool&) { return {}; }
PathText rule_of(const std::string&) { return {}; }
Seed rule_of(const uint64_t&) { return {}; }

// `get` returns what the rule reads and writes of a Config, const where that is.
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

// For rules that are about several members.
constexpr auto kWhole = [](auto& config) -> auto& { return config; };

struct PresetRule {
  std::string expected() const {
    std::string text;
    for (const std::string& name : model_preset_names()) text += (text.empty() ? "one of " : ", ") + name;
    return text;
  }
  bool read(const ConfigNode& found, Config& config) const {
    const std::vector<std::string> names = model_preset_names();
    if (found.kind == ConfigNode::Kind::kNull) return true;
    if (std::find(names.begin(), names.end(), found.text) == names.end()) return false;
    config.preset = found.text;
    config.model = model_preset(config.preset);
    return true;
  }
  OrderedJson write(const Config& config) const { return OptionalText{}.write(config.preset); }
};

struct BetasRule : NumberPair {
  bool read(const ConfigNode& found, Config& config) const {
    return NumberPair::read(found, config.optimizer.beta1, config.optimizer.beta2);
  }
  OrderedJson write(const Config& config) const {
    return OrderedJson::array({config.optimizer.beta1, config.optimizer.beta2});
  }
};

// Empty where it is left to the device.
struct ComputeRule : OneOf<DType> {
  bool read(const ConfigNode& found, Config& config) const {
    config.compute_given = found.kind != ConfigNode::Kind::kNull;
    return !config.compute_given || OneOf::read(found, config.precision.compute);
  }
  OrderedJson write(const Config& config) const {
    return config.compute_given ? OneOf::write(config.precision.compute) : OrderedJson(nullptr);
  }
};

// `auto` for the id that the token files' sidecars name, an id, or empty for none.
struct DocumentTokenRule {
  std::optional<int32_t> DataConfig::*id;
  bool DataConfig::*is_auto;

  std::string expected() const { return "auto, null or " + kOptionalToken.expected(); }
  bool read(const ConfigNode& found, DataConfig& data) const {
    if (found.kind == ConfigNode::Kind::kNull && found.text.empty()) return false;  // an empty value might mean auto
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
  if (field.presence == Presence::kDerived) return "of the other fields";
  if constexpr (!std::is_arithmetic_v<Value>)
    return "the preset's, or none";
  else
    return value == Value{} && std::is_integral_v<Value> && !std::is_same_v<Value, bool>
               ? "the preset's"
               : "the preset's, or " + OrderedJson(value).dump();
}

bool states(const Config& config, const std::string& field) {
  const std::vector<std::string>& fields = config.model_fields;
  return config.model_complete() || std::find(fields.begin(), fields.end(), field) != fields.end();
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

// Read only where there is a section, which the key before has made.
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

// Adds the keys of one section, each a member of a struct of the Config and of the section's class.
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

// The table is wider than the code: a key is a name, its member, what is allowed, a unit and a sentence.
// clang-format off

void add_model(std::vector<ConfigKey>& keys) {
  keys.push_back(make_key(KeyClass::kCarriesOut, "model.preset", kWhole, PresetRule{}, "", "Shape of a published model, of which the fields below change what they name."));
  add_shape(keys);
  const auto init_from = [](auto& config) -> auto& { return config.init_from; };
  keys.push_back(make_key(KeyClass::kModel, "model.init_from", init_from, OptionalPath{}, "", "Hugging Face directory or checkpoint to take the weights from, and the shape where none is given; it must agree where one is."));
  keys.back().compared = Compared::kAtStart;
}

const std::vector<std::string> kDatasetKeys{"path", "name", "weight", "max_epochs"};

void add_data(std::vector<ConfigKey>& keys) {
  using Data = DataConfig;
  SectionKeys<Data> data(keys, KeyClass::kData, "data", &Config::data);
  data.add("train", &Data::train, Datasets{"data.train"}, "", "Token files to train on: PREFIX, a list of them or a folder; a name for logs and metrics; samples are mixed by weight; passes of which more are reported.").item_keys = kDatasetKeys;
  keys.back().compared = Compared::kByEffect;
  data.add("validation", &Data::validation, Datasets{"data.validation"}, "", "Token files for the validation loss, of which windows spread over each are taken, always the same; each has a loss of its own.").carries_out().item_keys = kDatasetKeys;
  data.add("seq_len", &Data::seq_len, Integers{1, kMaxSeqLen}, "tokens", "Tokens that a model sees at once.");
  data.add("shuffle", &Data::shuffle, OneOf{kShuffle}, "", "Order of the training windows: lcg, a new pseudo-random one every epoch, or none, as in the file.");
  const auto whole = [](auto& config) -> auto& { return config.data; };
  keys.push_back(make_key(KeyClass::kData, "data.bos_id", whole, DocumentTokenRule{&Data::bos_id, &Data::bos_auto}, "token", "Token put before every document: auto for the one that the token files' sidecars (PREFIX.json) name, null for none."));
  keys.back().fallback = "auto";
  keys.push_back(make_key(KeyClass::kData, "data.eos_id", whole, DocumentTokenRule{&Data::eos_id, &Data::eos_auto}, "token", "Token put after every document: auto for the one that the token files' sidecars (PREFIX.json) name, null for none."));
  keys.back().fallback = "auto";
  data.add("document_mask", &Data::document_mask, "", "Whether a token attends only within its own document, and the first token of a document is no target.");
  data.add("on_max_epochs", &Data::on_max_epochs, OneOf{kOnMaxEpochs}, "", "What a dataset's max_epochs does: warn once it is passed, or an error before a run that would pass it.").carries_out();
  data.add("allow_overlap", &Data::allow_overlap, "", "Whether data.train and data.validation may have a file or its content in common, and a dataset may have a file twice; otherwise such a run is refused.").carries_out();
  data.add("skip", &Data::skip, SampleRanges{"data.skip"}, "samples", "Ranges [A, B] of global samples, A to B-1, that training passes over.").carries_out();
  data.add("resume_from_sample", &Data::resume_from_sample, OptionalInteger<int64_t>{{0, kMaxSample}}, "samples", "Global sample at which the data goes on, whatever a checkpoint says; once, not again when that run resumes.").carries_out();
  data.add("reader_threads", &Data::reader_threads, Integers{1, kMaxReaderThreads}, "", "Threads of a rank that read samples ahead.").carries_out();
  data.add("tokenizer", &Data::tokenizer, "", "byte, or the path of a Hugging Face tokenizer.json; for text in and out, recorded in checkpoints.").carries_out();
  keys.back().expected = "byte, or the path of a tokenizer.json";
  data.add("seed", &Data::seed, "", "Seed of the order of the windows.");
}

void add_training(std::vector<ConfigKey>& keys) {
  using Training = TrainingConfig;
  SectionKeys<Training> training(keys, KeyClass::kTraining, "training", &Config::training);
  training.add("steps", &Training::steps, Integers{1, kMaxSteps}, "steps", "Optimizer steps of the whole run, restarts included.").of_schedule();
  training.add("global_batch_size", &Training::global_batch_size, Integers{1, kMaxBatch}, "sequences", "Sequences of a step, over all ranks.").of_schedule();
  training.add("batch_size_warmup", &Training::batch_size_warmup, BatchPhases{"training.batch_size_warmup", {1, kMaxBatch}, {1, kMaxSteps}}, "sequences", "Smaller batches at the start of the run, each for so many steps; then global_batch_size.").of_schedule().item_keys = {"batch_size", "steps"};
  training.add("micro_batch_size", &Training::micro_batch_size, Integers{1, kMaxBatch}, "sequences", "Sequences of a rank and forward pass; the rest of the batch is accumulated.").carries_out();
  training.add("seed", &Training::seed, "", "Seed of the initial weights.");
  training.add("deterministic", &Training::deterministic, "", "Whether a run is bitwise the same twice on GPUs too, at some cost in speed.").carries_out();
  training.add("z_loss", &Training::z_loss, kNonNegative, "", "Coefficient of the mean squared logarithm of the softmax's normalizer, which is minimized beside the loss; 1e-4 keeps logits from drifting, 0 for none.");
  training.add("max_skipped_steps", &Training::max_skipped_steps, Integers{0, kMaxSteps}, "steps", "Steps in a row that may be passed over (their loss or gradient norm is not finite, or a spike) before the run ends with a checkpoint from before; and rollbacks to one checkpoint.").carries_out();
  training.add("on_loss_spike", &Training::on_loss_spike, OneOf{kOnLossSpike}, "", "What follows a loss far above those before it: a warning, a step that changes nothing, or a rollback to the last checkpoint, from which the samples of the spike are passed over.");
  training.add("loss_spike_z", &Training::loss_spike_z, kAtLeastOne, "standard deviations", "How far above the mean of the window a loss is a spike. Gradient norms as far above theirs are marked.").carries_out();
  training.add("loss_spike_window", &Training::loss_spike_window, Integers{0, kMaxWindow}, "steps", "Losses, and gradient norms, that spikes are told by; 0 for never.").carries_out();
  training.add("check_every", &Training::check_every, Integers{0, kMaxSteps}, "steps", "Interval of the check for silent corruption, which compares what several ranks hold alike and, on the CPU and in deterministic runs, the results of a micro-batch computed twice; 0 for never.").carries_out();
  training.add("on_corruption", &Training::on_corruption, OneOf{kOnCorruption}, "", "What a difference found by that check does: stop the run, exclude the machine as well, on which the launchers start no rank any more, or warn and save no state whose copies differ.").carries_out();
}

void add_optimizer(std::vector<ConfigKey>& keys) {
  using Optimizer = OptimizerConfig;
  SectionKeys<Optimizer> optimizer(keys, KeyClass::kOptimizer, "optimizer", &Config::optimizer);
  optimizer.add("type", &Optimizer::type, OneOf{kOptimizerType}, "", "AdamW, or Muon for the matrices of the blocks with AdamW for the tables and norms; learning rates and decay mean the same for both.");
  optimizer.add("lr", &Optimizer::lr, kPositive, "", "Peak learning rate.").of_schedule();
  optimizer.add("min_lr_ratio", &Optimizer::min_lr_ratio, kUnitInterval, "", "The last step's learning rate over the peak.").of_schedule();
  optimizer.add("warmup_steps", &Optimizer::warmup_steps, Integers{0, kMaxSteps}, "steps", "Length of the linear warm-up; 0 for none.").of_schedule();
  optimizer.add("schedule", &Optimizer::schedule, OneOf{kSchedule}, "", "The learning rate after the warm-up; wsd is constant up to a decay at the end, inverse_sqrt falls with the root of the step.").of_schedule();
  optimizer.add("decay_steps", &Optimizer::decay_steps, Integers{0, kMaxSteps}, "steps", "Length of wsd's decay; 0 for a tenth of the steps.").of_schedule();
  optimizer.add("decay", &Optimizer::decay, OneOf{kDecay}, "", "Shape of wsd's decay: linear, or as one minus the root of the part of it that is done.").of_schedule();
  optimizer.add("momentum", &Optimizer::momentum, kBelowOne, "", "Muon's decay rate of its momentum.");
  keys.push_back(make_key(KeyClass::kOptimizer, "optimizer.betas", kWhole, BetasRule{{"optimizer.betas"}}, "", "AdamW's decay rates of the first and the second moment."));
  optimizer.add("eps", &Optimizer::eps, kPositive, "", "AdamW's addend to the root of the second moment.");
  optimizer.add("weight_decay", &Optimizer::weight_decay, kNonNegative, "", "Decoupled weight decay, on tensors of two or more dimensions.");
  optimizer.add("grad_clip", &Optimizer::grad_clip, kNonNegative, "", "Largest global gradient norm; 0 for no clipping.");
  optimizer.add("state_dtype", &Optimizer::state_dtype, OneOf{kStateType}, "", "What the moments, and Muon's momentum, are kept in; with float8 the first moment in float8, the rest in bfloat16.");
  optimizer.add("ema_decay", &Optimizer::ema_decay, kBelowOne, "", "Share of the moving average of the weights that a step keeps, as 0.9999; 0 for no average.");
}

void add_precision(std::vector<ConfigKey>& keys) {
  using Precision = PrecisionConfig;
  SectionKeys<Precision> precision(keys, KeyClass::kPrecision, "precision", &Config::precision);
  keys.push_back(make_key(KeyClass::kPrecision, "precision.compute", kWhole, ComputeRule{OneOf{kFloatType}}, "", "Activations, and the weights that products read; GPUs take bfloat16 alone."));
  keys.back().fallback = "bfloat16 on GPUs, float32 on the CPU";
  precision.add("linear", &Precision::linear, OneOf{kLinear}, "", "Recipe of the linears (qkv, o, gate_up, down); with bfloat16 they multiply in precision.compute.");
  precision.add("lm_head", &Precision::lm_head, OneOf{kLmHead}, "", "FP8 products of lm_head: none (bfloat16, which is precision.compute), those of its gradients, or that of the logits as well.");
  precision.add("bf16_first_layers", &Precision::bf16_first_layers, Integers{0, kMaxLayers}, "blocks", "Blocks at the start whose linears stay out of FP8.");
  precision.add("bf16_last_layers", &Precision::bf16_last_layers, Integers{0, kMaxLayers}, "blocks", "Blocks at the end whose linears stay out of FP8.");
  precision.add("fp8_all_gather", &Precision::fp8_all_gather, "", "Whether sharded weights travel in FP8 where the recipe allows it.").carries_out();
  precision.add("reduce", &Precision::reduce, OneOf{kFloatType}, "", "What gradients travel between ranks in.");
  precision.add("gradient_format", &Precision::gradient_format, OneOf{kFloat8Type}, "", "FP8 format of output gradients; activations and weights are e4m3.");
  precision.add("fast_accumulation", &Precision::fast_accumulation, OneOf{kFastAccumulation}, "", "FP8 products that use the tensor cores' fast accumulation; blockwise ones never do.");
  precision.add("amax_history", &Precision::amax_history, Integers{1, kMaxAmaxHistory}, "steps", "fp8_delayed: steps whose largest amax makes the scale.");
  precision.add("amax_margin", &Precision::amax_margin, Integers{0, kMaxAmaxMargin}, "powers of 2", "fp8_delayed: the scale is divided by 2 to the power of this.");
  using Guard = PrecisionGuardConfig;
  SectionKeys<Guard> guard(keys, KeyClass::kCarriesOut, "precision.guard", &Config::precision_guard);
  guard.add("every", &Guard::every, Integers{0, kMaxSteps}, "steps", "Steps between comparisons of FP8 with bfloat16; 0 for never.");
  guard.add("steps", &Guard::steps, Integers{1, kMaxGuardSteps}, "steps", "Steps of a comparison, taken in bfloat16 and in FP8 from the same state and samples.");
  guard.add("tolerance", &Guard::tolerance, kPositive, "", "Mean difference of the losses over their mean that is tolerated.");
  guard.add("action", &Guard::action, OneOf{kOnPrecisionGap}, "", "What follows a larger one: a warning, or bfloat16 from before the comparison on.").key_class = KeyClass::kPrecision;
  guard.add("fallback_steps", &Guard::fallback_steps, Integers{1, kMaxSteps}, "steps", "Steps in bfloat16 before FP8 is tried again.");
}

void add_parallel(std::vector<ConfigKey>& keys) {
  using Parallel = ParallelConfig;
  SectionKeys<Parallel> parallel(keys, KeyClass::kCarriesOut, "parallel", &Config::parallel);
  parallel.add("data_parallel_shard", &Parallel::data_parallel_shard, RanksOrRest{1, kMaxRanks}, "ranks", "Ranks that share one copy of the parameters and optimizer state (FSDP); -1 for all that the other axes leave.");
  parallel.add("data_parallel_replicate", &Parallel::data_parallel_replicate, RanksOrRest{1, kMaxRanks}, "ranks", "Copies of the sharded state (HSDP); -1 for all that a given data_parallel_shard leaves, or, where that is -1 too, for a copy on each of several nodes if memory allows, else one.");
  parallel.add("tensor_parallel", &Parallel::tensor_parallel, Integers{1, kMaxRanks}, "ranks", "Ranks that split each layer, with sequence parallelism.");
  parallel.add("context_parallel", &Parallel::context_parallel, Integers{1, kMaxRanks}, "ranks", "Ranks that share each sequence, each with an early and a late piece of it; they share the state with those of data_parallel_shard.");
  parallel.add("tensor_parallel_chunks", &Parallel::tensor_parallel_chunks, Integers{1, kMaxChunks}, "", "Stretches of the tokens that the collectives and products of tensor parallelism are split into, to overlap.");
  parallel.add("reshard_after_forward", &Parallel::reshard_after_forward, OneOf{kReshard}, "", "Whether gathered weights are freed after forward and gathered anew in backward; auto frees them where they do not all fit.");
  parallel.add("accumulate_unsharded", &Parallel::accumulate_unsharded, "", "Whether full gradients are kept over the micro-batches and reduced once a step.");
  parallel.add("nccl_memory", &Parallel::nccl_memory, OneOf{kNcclMemory}, "", "How NCCL reaches tensors: through its own buffers (plain), or in memory mapped by all ranks (registered); auto registers the shard axis on one machine.");
  parallel.add("cover_multiprocessors", &Parallel::cover_multiprocessors, Integers{0, kMaxMultiprocessors}, "multiprocessors", "What products take while they cover a tensor-parallel collective; 0 for all.");
  parallel.add("timeout_s", &Parallel::timeout_s, kSecondsOrNever, "seconds", "A collective that takes longer ends the run; 0 for never.");
}

void add_activation_checkpointing(std::vector<ConfigKey>& keys) {
  using Checkpointing = ActivationCheckpointing;
  SectionKeys<Checkpointing> checkpointing(keys, KeyClass::kCarriesOut, "activation_checkpointing", &Config::activation_checkpointing);
  checkpointing.add("mode", &Checkpointing::mode, OneOf{kMode}, "", "What backward makes again; auto keeps as much as fits into memory.");
  checkpointing.add("ratio", &Checkpointing::ratio, kUnitInterval, "", "block: share of the blocks that are recomputed whole.");
}

void add_outputs(std::vector<ConfigKey>& keys) {
  SectionKeys<CheckpointConfig> checkpoint(keys, KeyClass::kCarriesOut, "checkpoint", &Config::checkpoint);
  checkpoint.add("dir", &CheckpointConfig::dir, "", "Directory of the checkpoints, one for each step that was saved.").fallback = "checkpoints in logging.dir";
  checkpoint.add("every", &CheckpointConfig::every, Integers{0, kMaxSteps}, "steps", "Steps between checkpoints; 0 for one only at the end and when stopped by a signal.");
  checkpoint.add("every_minutes", &CheckpointConfig::every_minutes, kMinutesOrNever, "minutes", "Time after which one is saved too, by rank 0's clock since the last save began; 0 for no such time.");
  checkpoint.add("keep", &CheckpointConfig::keep, Integers{0, kMaxSteps}, "checkpoints", "Newest checkpoints that are kept; 0 for all.");
  checkpoint.add("keep_every", &CheckpointConfig::keep_every, Integers{0, kMaxSteps}, "steps", "Checkpoints of steps that are multiples of this are kept for ever; 0 for none.");
  checkpoint.add("max_failed_saves", &CheckpointConfig::max_failed_saves, Integers{0, kMaxSteps}, "saves", "So many failed saves in a row end the run; with 0 the first does.");
  checkpoint.add("async", &CheckpointConfig::async, "", "Whether checkpoints are written while training goes on.");
  checkpoint.add("in_memory", &CheckpointConfig::in_memory, "", "Whether the newest state is also kept in host memory that outlives the processes, for a restart that reads no disk; where there are several machines, on another one as well.");
  checkpoint.add("in_memory_every", &CheckpointConfig::in_memory_every, Integers{1, kMaxSteps}, "steps", "Steps between the states that are kept in memory.");
  checkpoint.add("resume", &CheckpointConfig::resume, "", "auto for the newest complete checkpoint of the directory, if any; never; or the path of one, or of a run folder for its newest one.");
  keys.back().expected = "auto, never, or the path of a checkpoint or a run folder";
  checkpoint.add("allow_changes", &CheckpointConfig::allow_changes, SomeOf<KeyClass>{{kAllowedChange}, "checkpoint.allow_changes"}, "", "Classes of keys that a resumed run may have other values for than the run that saved its checkpoint: each such change is refused otherwise. With data, a run whose samples are others begins the data again.");
  SectionKeys<LoggingConfig> logging(keys, KeyClass::kCarriesOut, "logging", &Config::logging);
  logging.add("every", &LoggingConfig::every, Integers{1, kMaxSteps}, "steps", "Steps between logged steps.");
  logging.add("dir", &LoggingConfig::dir, "", "Directory of metrics.jsonl and the TensorBoard events.").fallback = "runs/ and the name of the config file without .yaml";
  logging.add("tensorboard", &LoggingConfig::tensorboard, "", "Whether TensorBoard event files are written.");
  logging.add("prometheus", &LoggingConfig::prometheus, OptionalPath{}, "", "File with the last logged step in Prometheus' text format, replaced at each, for the textfile collector of its node exporter; its name must end in .prom for that.");
  logging.add("fp8_stats_every", &LoggingConfig::fp8_stats_every, Integers{0, kMaxSteps}, "steps", "Steps between statistics of the FP8 casts, which are logged steps too; 0 for none.");
  logging.add("slow_rank_every", &LoggingConfig::slow_rank_every, Integers{0, kMaxSteps}, "steps", "Steps between measurements of the time that each rank spends in collectives, by which a slow rank is found; 0 measures no step.");
  logging.add("color", &LoggingConfig::color, OneOf{kLogColor}, "", "Whether the console has colors; auto for those of a terminal, unless the environment has NO_COLOR.");
  SectionKeys<TraceConfig> trace(keys, KeyClass::kCarriesOut, "logging.trace", &Config::trace);
  trace.add("step", &TraceConfig::step, Integers{0, kMaxSteps}, "", "The step of which a trace of every rank is written to trace_step_N.json in logging.dir, for Perfetto and Chrome; 0 for none.");
  SectionKeys<ValidationConfig> validation(keys, KeyClass::kCarriesOut, "validation", &Config::validation);
  validation.add("every", &ValidationConfig::every, Integers{0, kMaxSteps}, "steps", "Steps between validations; 0 for never.");
  validation.add("batches", &ValidationConfig::batches, Integers{1, kMaxSteps}, "batches", "Global batches of one validation.");
  SectionKeys<PlanConfig> plan(keys, KeyClass::kCarriesOut, "plan", &Config::plan);
  plan.add("gpus", &PlanConfig::gpus, Integers{0, kMaxRanks}, "GPUs", "Number of GPUs that octavo plan plans for without --gpus; 0 for as many as the mesh states. A run ignores this key.");
  plan.add("machine", &PlanConfig::machine, "", "Machine that octavo plan plans for without --machine. A run ignores this key.");
  keys.back().expected = "h200, h100, or the path of a file that octavo doctor --save wrote";
  const auto device = [](auto& config) -> auto& { return config.device; };
  keys.push_back(make_key(KeyClass::kCarriesOut, "device", device, OneOf{kDevice}, "", "Where to train; auto takes a GPU where there is one."));
}

// clang-format on

std::vector<ConfigKey> make_keys() {
  std::vector<ConfigKey> keys;
  for (const auto add : {add_model, add_data, add_training, add_optimizer, add_precision, add_parallel,
                         add_activation_checkpointing, add_outputs}) {
    add(keys);
  }
  keys.push_back(stages_key(keys));  // last, as it is read on top of the others
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

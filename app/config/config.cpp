// Reading: one function a section of the config.
#include "app/config/config.h"

#include <algorithm>
#include <filesystem>

#include "app/config/config_names.h"
#include "app/config/config_node.h"
#include "app/config/config_reader.h"
#include "core/error.h"

namespace octavo {

namespace {

using namespace config_names;

// Upper limits keep every product of sizes (samples, bytes) inside 64 bits, as those of model/config.h do.
constexpr int64_t kMaxAmaxHistory = 1 << 16;
constexpr int64_t kMaxAmaxMargin = 64;
constexpr int64_t kMaxSteps = 1'000'000'000;
constexpr int64_t kMaxBatch = 1 << 24;
constexpr int64_t kMaxRanks = 1 << 20;
constexpr int64_t kMaxCtas = 64;  // NCCL's own limit
constexpr int64_t kMaxChunks = 64;
constexpr int64_t kMaxMultiprocessors = 1024;
constexpr int64_t kMaxLanes = 1 << 24;

void read_preset(SectionReader& section, Config& config) {
  const ConfigNode* found = section.child("preset");
  if (found == nullptr) return;
  const std::vector<std::string> names = model_preset_names();
  if (std::find(names.begin(), names.end(), found->text) == names.end()) {
    std::string allowed;
    for (const std::string& name : names) allowed += (allowed.empty() ? "" : ", ") + name;
    section.wrong("preset", *found, "one of " + allowed);
  }
  config.preset = found->text;
  config.model = model_preset(config.preset);
}

// Whether the key was written: empty or `none` removes a preset's scaling.
bool read_rope_scaling(SectionReader& section, ModelConfig& model) {
  const ConfigNode* found = section.child("rope_scaling");
  const bool is_removed = section.is_written("rope_scaling") && (found == nullptr || found->text == "none");
  RopeScaling scaling = model.rope_scaling.value_or(RopeScaling{});
  SectionReader nested = is_removed ? SectionReader(nullptr, section.full_key("rope_scaling"), section.known_keys())
                                    : section.section("rope_scaling");
  nested.number("factor", scaling.factor, kPositive);
  nested.number("low_freq_factor", scaling.low_freq_factor, kPositive);
  nested.number("high_freq_factor", scaling.high_freq_factor, kPositive);
  nested.integer("original_max_position_embeddings", scaling.original_max_position_embeddings, 1, kMaxSeqLen);
  if (is_removed)
    model.rope_scaling.reset();
  else if (found != nullptr)
    model.rope_scaling = scaling;
  return section.is_written("rope_scaling");
}

// What a config may leave out of the shape because the rest implies it.
void derive_heads(Config& config, bool has_head_dim) {
  ModelConfig& model = config.model;
  if (model.num_kv_heads == 0) model.num_kv_heads = model.num_heads;
  if (has_head_dim || model.num_heads == 0 || model.hidden_size == 0) return;
  CHECK_INPUT(model.hidden_size % model.num_heads == 0,
              "{}: model.hidden_size is {}, which model.num_heads {} does not divide, expected a multiple of it",
              config.source, model.hidden_size, model.num_heads);
  model.head_dim = model.hidden_size / model.num_heads;
}

void read_model(SectionReader section, Config& config) {
  ModelConfig& model = config.model;
  read_preset(section, config);
  if (section.optional_text("init_from", config.init_from) && config.init_from == "none") config.init_from.clear();
  const auto given = [&](const char* field, bool is_given) {
    if (is_given) config.model_fields.emplace_back(field);
    return is_given;
  };
  given("hidden_size", section.integer("hidden_size", model.hidden_size, 1, kMaxHidden));
  given("intermediate_size", section.integer("intermediate_size", model.intermediate_size, 1, kMaxIntermediate));
  given("num_layers", section.integer("num_layers", model.num_layers, 1, kMaxLayers));
  given("num_heads", section.integer("num_heads", model.num_heads, 1, kMaxHeads));
  given("num_kv_heads", section.integer("num_kv_heads", model.num_kv_heads, 1, kMaxHeads));
  const bool has_head_dim = given("head_dim", section.integer("head_dim", model.head_dim, 1, kMaxHeadDim));
  given("vocab_size", section.integer("vocab_size", model.vocab_size, 1, kMaxVocab));
  given("rope_theta", section.number("rope_theta", model.rope_theta, kPositive));
  given("rope_scaling", read_rope_scaling(section, model));
  given("rms_norm_eps", section.number("rms_norm_eps", model.rms_norm_eps, kPositive));
  given("tie_word_embeddings", section.boolean("tie_word_embeddings", model.tie_word_embeddings));
  derive_heads(config, has_head_dim);
  if (config.preset.empty()) return;
  config.model_fields.clear();
  const nlohmann::ordered_json shape = model_to_json(model);
  for (const auto& field : shape.items()) config.model_fields.push_back(field.key());
}

std::vector<DatasetSource> read_datasets(SectionReader& section, const char* key) {
  std::vector<DatasetSource> sources;
  for (const ConfigNode* item : section.items(key)) {
    DatasetSource source;
    if (item->kind == ConfigNode::Kind::kScalar && !item->text.empty()) {
      source.path = item->text;
    } else if (item->kind == ConfigNode::Kind::kMap) {
      SectionReader entry(item, section.full_key(key), section.known_keys());
      entry.text("path", source.path);
      entry.number("weight", source.weight, kNonNegative);
    } else {
      section.wrong(key, *item, "a list of {path: PREFIX, weight: NUMBER}");
    }
    sources.push_back(std::move(source));
  }
  return sources;
}

void read_data(SectionReader section, DataConfig& data) {
  data.train = read_datasets(section, "train");
  data.validation = read_datasets(section, "validation");
  section.integer("seq_len", data.seq_len, 1, kMaxSeqLen);
  section.choice("shuffle", data.shuffle, kShuffle);
  section.integer("bos_id", data.bos_id, 0);
  section.integer("eos_id", data.eos_id, 0);
  section.boolean("document_mask", data.document_mask);
  section.integer("lanes", data.lanes, 1, kMaxLanes);
  section.text("tokenizer", data.tokenizer);
  section.seed("seed", data.seed);
}

void read_training(SectionReader section, TrainingConfig& training) {
  section.integer("steps", training.steps, 1, kMaxSteps);
  section.integer("global_batch_size", training.global_batch_size, 1, kMaxBatch);
  section.integer("micro_batch_size", training.micro_batch_size, 1, kMaxBatch);
  section.seed("seed", training.seed);
  section.boolean("deterministic", training.deterministic);
}

void read_betas(SectionReader& section, OptimizerConfig& optimizer) {
  const ConfigNode* found = section.written("betas");
  if (found == nullptr) return;
  constexpr const char* kExpected = "two numbers [beta1, beta2], each at least 0 and below 1";
  if (found->kind != ConfigNode::Kind::kList || found->children.size() != 2) section.wrong("betas", *found, kExpected);
  double* const targets[] = {&optimizer.beta1, &optimizer.beta2};
  for (size_t i = 0; i < 2; ++i) {
    const std::optional<double> beta = parse_number(found->children[i]);
    if (!beta || !kBelowOne.contains(*beta)) section.wrong("betas", found->children[i], kExpected);
    *targets[i] = *beta;
  }
}

void read_optimizer(SectionReader section, OptimizerConfig& optimizer) {
  section.number("lr", optimizer.lr, kPositive);
  section.number("min_lr_ratio", optimizer.min_lr_ratio, kUnitInterval);
  section.integer("warmup_steps", optimizer.warmup_steps, 0, kMaxSteps);
  section.choice("schedule", optimizer.schedule, kSchedule);
  section.integer("decay_steps", optimizer.decay_steps, 0, kMaxSteps);
  read_betas(section, optimizer);
  section.number("eps", optimizer.eps, kPositive);
  section.number("weight_decay", optimizer.weight_decay, kNonNegative);
  section.number("grad_clip", optimizer.grad_clip, kNonNegative);
  section.choice("state_dtype", optimizer.state_dtype, kFloatType);
}

void read_precision(SectionReader section, Config& config) {
  // Empty where it is left to the device.
  config.compute_given =
      section.child("compute") != nullptr && section.choice("compute", config.precision.compute, kFloatType);
  section.choice("linear", config.precision.linear, kLinear);
  section.integer("bf16_first_layers", config.precision.bf16_first_layers, 0, kMaxLayers);
  section.integer("bf16_last_layers", config.precision.bf16_last_layers, 0, kMaxLayers);
  section.boolean("fp8_all_gather", config.precision.fp8_all_gather);
  section.choice("reduce", config.precision.reduce, kFloatType);
  section.choice("gradient_format", config.precision.gradient_format, kFloat8Type);
  section.choice("fast_accumulation", config.precision.fast_accumulation, kFastAccumulation);
  section.integer("amax_history", config.precision.amax_history, 1, kMaxAmaxHistory);
  section.integer("amax_margin", config.precision.amax_margin, 0, kMaxAmaxMargin);
}

void read_parallel(SectionReader section, Config& config) {
  section.integer("data_parallel_shard", config.parallel.data_parallel_shard, -1, kMaxRanks);
  if (config.parallel.data_parallel_shard == 0)
    section.wrong("data_parallel_shard", *section.child("data_parallel_shard"), "a positive number or -1");
  section.integer("data_parallel_replicate", config.parallel.data_parallel_replicate, 1, kMaxRanks);
  section.integer("tensor_parallel", config.parallel.tensor_parallel, 1, kMaxRanks);
  section.integer("tensor_parallel_chunks", config.parallel.tensor_parallel_chunks, 1, kMaxChunks);
  section.choice("reshard_after_forward", config.parallel.reshard_after_forward, kReshard);
  section.boolean("accumulate_unsharded", config.parallel.accumulate_unsharded);
  section.integer("nccl_max_ctas", config.parallel.nccl_max_ctas, 0, kMaxCtas);
  section.choice("nccl_memory", config.parallel.nccl_memory, kNcclMemory);
  section.integer("cover_multiprocessors", config.parallel.cover_multiprocessors, 0, kMaxMultiprocessors);
  section.number("timeout_s", config.parallel.timeout_s, kNonNegative);
}

void read_outputs(SectionReader& root, Config& config) {
  SectionReader checkpoint = root.section("checkpoint");
  checkpoint.text("dir", config.checkpoint.dir);
  checkpoint.integer("every", config.checkpoint.every, 0, kMaxSteps);
  checkpoint.integer("keep", config.checkpoint.keep, 0, kMaxSteps);
  checkpoint.boolean("async", config.checkpoint.async);
  checkpoint.text("resume", config.checkpoint.resume);
  SectionReader logging = root.section("logging");
  logging.integer("every", config.logging.every, 1, kMaxSteps);
  logging.text("dir", config.logging.dir);
  logging.boolean("tensorboard", config.logging.tensorboard);
  logging.integer("fp8_stats_every", config.logging.fp8_stats_every, 0, kMaxSteps);
  SectionReader validation = root.section("validation");
  validation.integer("every", config.validation.every, 0, kMaxSteps);
  validation.integer("batches", config.validation.batches, 1, kMaxSteps);
}

void check_dataset_paths(const std::vector<DatasetSource>& sources, const char* key, const std::string& source) {
  for (size_t i = 0; i < sources.size(); ++i)
    CHECK_INPUT(!sources[i].path.empty(), "{}: {} has no path in dataset {}, expected {{path: PREFIX, weight: NUMBER}}",
                source, key, i + 1);
}

Config read_config(const ConfigNode& tree, const std::string& source) {
  Config config;
  config.source = source;
  config.logging.dir = (std::filesystem::path("runs") / std::filesystem::path(source).stem()).string();
  std::vector<std::string> known_keys;
  SectionReader root(&tree, "", known_keys);
  read_model(root.section("model"), config);
  read_data(root.section("data"), config.data);
  read_training(root.section("training"), config.training);
  read_optimizer(root.section("optimizer"), config.optimizer);
  read_precision(root.section("precision"), config);
  read_parallel(root.section("parallel"), config);
  SectionReader recompute = root.section("activation_checkpointing");
  recompute.choice("mode", config.activation_checkpointing.mode, kMode);
  recompute.number("ratio", config.activation_checkpointing.ratio, kUnitInterval);
  read_outputs(root, config);
  root.choice("device", config.device, kDevice);
  refuse_unknown_keys(tree, known_keys);
  // After the unknown keys: a misspelt `path` is better reported as that.
  check_dataset_paths(config.data.train, "data.train", source);
  check_dataset_paths(config.data.validation, "data.validation", source);
  return config;
}

}  // namespace

bool Config::model_complete() const {
  return model.hidden_size > 0 && model.intermediate_size > 0 && model.num_layers > 0 && model.num_heads > 0 &&
         model.num_kv_heads > 0 && model.head_dim > 0 && model.vocab_size > 0;
}

Config load_config(const std::string& path, std::span<const std::string> overrides) {
  ConfigNode tree = node_from_file(path);
  for (const std::string& override_text : overrides) apply_override(tree, override_text);
  return read_config(tree, path);
}

Config config_from_json(const nlohmann::json& json, const std::string& source) {
  CHECK_INPUT(json.is_object(), "{} is not a JSON object, expected the sections of a config", source);
  return read_config(node_from_json(json, source), source);
}

}  // namespace octavo

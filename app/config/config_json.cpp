// Writing: a Config back as JSON and YAML, in the layout that is read.
#include <algorithm>
#include <cctype>

#include "app/config/config.h"
#include "app/config/config_names.h"

namespace octavo {

namespace {

using namespace config_names;
using OrderedJson = nlohmann::ordered_json;

// A JSON null where nothing was given.
template <typename T>
OrderedJson optional_json(const std::optional<T>& value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

OrderedJson text_or_null(const std::string& text) { return text.empty() ? OrderedJson(nullptr) : OrderedJson(text); }

OrderedJson model_section(const Config& config) {
  OrderedJson section;
  section["preset"] = text_or_null(config.preset);
  const OrderedJson shape = model_to_json(config.model);
  // An unfinished shape is still to be read from init_from, so only what the config states is known.
  for (const auto& [field, value] : shape.items()) {
    const auto& fields = config.model_fields;
    if (config.model_complete() || std::find(fields.begin(), fields.end(), field) != fields.end())
      section[field] = value;
  }
  section["init_from"] = text_or_null(config.init_from);
  return section;
}

OrderedJson datasets_json(const std::vector<DatasetSource>& sources) {
  OrderedJson list = OrderedJson::array();
  for (const DatasetSource& source : sources)
    list.push_back(OrderedJson{{"path", source.path}, {"weight", source.weight}});
  return list;
}

OrderedJson data_section(const DataConfig& data) {
  return OrderedJson{{"train", datasets_json(data.train)},
                     {"validation", datasets_json(data.validation)},
                     {"seq_len", data.seq_len},
                     {"shuffle", name_of(kShuffle, data.shuffle)},
                     {"bos_id", optional_json(data.bos_id)},
                     {"eos_id", optional_json(data.eos_id)},
                     {"document_mask", data.document_mask},
                     {"lanes", data.lanes},
                     {"tokenizer", data.tokenizer},
                     {"seed", data.seed}};
}

OrderedJson training_section(const TrainingConfig& training) {
  return OrderedJson{{"steps", training.steps},
                     {"global_batch_size", training.global_batch_size},
                     {"micro_batch_size", training.micro_batch_size},
                     {"seed", training.seed},
                     {"deterministic", training.deterministic}};
}

OrderedJson optimizer_section(const OptimizerConfig& optimizer) {
  return OrderedJson{{"lr", optimizer.lr},
                     {"min_lr_ratio", optimizer.min_lr_ratio},
                     {"warmup_steps", optimizer.warmup_steps},
                     {"schedule", name_of(kSchedule, optimizer.schedule)},
                     {"decay_steps", optimizer.decay_steps},
                     {"betas", OrderedJson::array({optimizer.beta1, optimizer.beta2})},
                     {"eps", optimizer.eps},
                     {"weight_decay", optimizer.weight_decay},
                     {"grad_clip", optimizer.grad_clip},
                     {"state_dtype", name_of(kFloatType, optimizer.state_dtype)}};
}

OrderedJson precision_section(const Config& config) {
  const PrecisionConfig& recipe = config.precision;
  OrderedJson section;
  section["compute"] =
      config.compute_given ? OrderedJson(name_of(kFloatType, config.precision.compute)) : OrderedJson(nullptr);
  section["linear"] = name_of(kLinear, recipe.linear);
  section["bf16_first_layers"] = recipe.bf16_first_layers;
  section["bf16_last_layers"] = recipe.bf16_last_layers;
  section["fp8_all_gather"] = recipe.fp8_all_gather;
  section["reduce"] = name_of(kFloatType, recipe.reduce);
  section["gradient_format"] = name_of(kFloat8Type, recipe.gradient_format);
  section["fast_accumulation"] = name_of(kFastAccumulation, recipe.fast_accumulation);
  section["amax_history"] = recipe.amax_history;
  section["amax_margin"] = recipe.amax_margin;
  return section;
}

OrderedJson parallel_section(const Config& config) {
  return OrderedJson{{"data_parallel_shard", config.parallel.data_parallel_shard},
                     {"data_parallel_replicate", config.parallel.data_parallel_replicate},
                     {"tensor_parallel", config.parallel.tensor_parallel},
                     {"tensor_parallel_chunks", config.parallel.tensor_parallel_chunks},
                     {"reshard_after_forward", name_of(kReshard, config.parallel.reshard_after_forward)},
                     {"accumulate_unsharded", config.parallel.accumulate_unsharded},
                     {"nccl_max_ctas", config.parallel.nccl_max_ctas},
                     {"nccl_memory", name_of(kNcclMemory, config.parallel.nccl_memory)},
                     {"cover_multiprocessors", config.parallel.cover_multiprocessors},
                     {"timeout_s", config.parallel.timeout_s}};
}

OrderedJson config_sections(const Config& config) {
  const CheckpointConfig& checkpoint = config.checkpoint;
  const LoggingConfig& logging = config.logging;
  OrderedJson root;
  root["model"] = model_section(config);
  root["data"] = data_section(config.data);
  root["training"] = training_section(config.training);
  root["optimizer"] = optimizer_section(config.optimizer);
  root["precision"] = precision_section(config);
  root["parallel"] = parallel_section(config);
  root["activation_checkpointing"] = OrderedJson{{"mode", name_of(kMode, config.activation_checkpointing.mode)},
                                                 {"ratio", config.activation_checkpointing.ratio}};
  root["checkpoint"] = OrderedJson{{"dir", checkpoint.dir},
                                   {"every", checkpoint.every},
                                   {"keep", checkpoint.keep},
                                   {"async", checkpoint.async},
                                   {"resume", checkpoint.resume}};
  root["logging"] = OrderedJson{{"every", logging.every},
                                {"dir", logging.dir},
                                {"tensorboard", logging.tensorboard},
                                {"fp8_stats_every", logging.fp8_stats_every}};
  root["validation"] = OrderedJson{{"every", config.validation.every}, {"batches", config.validation.batches}};
  root["device"] = name_of(kDevice, config.device);
  return root;
}

// Bare words that YAML reads back as the same text; everything else keeps JSON's quotes.
bool is_plain_word(const std::string& text) {
  const auto is_word_character = [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '/' || c == '-' || c == '.';
  };
  const bool starts_well =
      !text.empty() && (std::isalpha(static_cast<unsigned char>(text.front())) || text.front() == '/');
  constexpr const char* kReserved[] = {"null", "Null", "NULL", "true", "false"};
  return starts_well && std::all_of(text.begin(), text.end(), is_word_character) &&
         std::find(std::begin(kReserved), std::end(kReserved), text) == std::end(kReserved);
}

std::string yaml_value(const OrderedJson& value) {
  if (value.is_string() && is_plain_word(value.get<std::string>())) return value.get<std::string>();
  if (!value.is_structured()) return value.dump();
  std::string text;
  for (const auto& [key, item] : value.items()) {
    text += text.empty() ? "" : ", ";
    text += value.is_object() ? key + ": " + yaml_value(item) : yaml_value(item);
  }
  return value.is_object() ? "{" + text + "}" : "[" + text + "]";
}

}  // namespace

nlohmann::ordered_json model_to_json(const ModelConfig& model) {
  OrderedJson shape{{"hidden_size", model.hidden_size},
                    {"intermediate_size", model.intermediate_size},
                    {"num_layers", model.num_layers},
                    {"num_heads", model.num_heads},
                    {"num_kv_heads", model.num_kv_heads},
                    {"head_dim", model.head_dim},
                    {"vocab_size", model.vocab_size},
                    {"rope_theta", model.rope_theta},
                    {"rope_scaling", nullptr},
                    {"rms_norm_eps", model.rms_norm_eps},
                    {"tie_word_embeddings", model.tie_word_embeddings}};
  if (model.rope_scaling) {
    const RopeScaling& scaling = *model.rope_scaling;
    shape["rope_scaling"] = OrderedJson{{"factor", scaling.factor},
                                        {"low_freq_factor", scaling.low_freq_factor},
                                        {"high_freq_factor", scaling.high_freq_factor},
                                        {"original_max_position_embeddings", scaling.original_max_position_embeddings}};
  }
  return shape;
}

std::string linear_precision(const Config& config) {
  const PrecisionConfig& precision = config.precision;
  return is_fp8(precision.linear) ? name_of(kLinear, precision.linear) : dtype_name(precision.compute);
}

nlohmann::json to_json(const Config& config) { return nlohmann::json(config_sections(config)); }

std::string to_yaml(const Config& config) {
  std::string text;
  const OrderedJson sections = config_sections(config);
  for (const auto& [name, section] : sections.items()) {
    if (!section.is_object()) {
      text += name + ": " + yaml_value(section) + "\n";
      continue;
    }
    text += name + ":\n";
    for (const auto& [key, value] : section.items()) text += "  " + key + ": " + yaml_value(value) + "\n";
  }
  return text;
}

}  // namespace octavo

#include "app/inputs/run_config.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <system_error>

#include "app/config/config_node.h"
#include "app/inputs/model_path.h"
#include "app/inputs/same_files.h"
#include "app/inputs/tokenizer_source.h"
#include "core/error.h"
#include "core/files/input_file.h"
#include "core/files/json_input.h"
#include "core/log.h"
#include "data/tokenizer_identity.h"
#include "model/architecture/model_fields.h"

namespace octavo {

namespace {

// Values of model.init_from and checkpoint.resume that the command line gives.
struct GivenWeights {
  std::string init_from;
  std::string resume;  // Also empty if the value does not name a checkpoint (auto or never).
  std::string checkpoint_dir;
};

GivenWeights given_weights(std::span<const std::string> overrides) {
  ConfigNode tree;
  tree.kind = ConfigNode::Kind::kMap;
  for (const std::string& text : overrides) apply_override(tree, text);
  const auto value = [&](const char* key) {
    const ConfigNode* found = tree.find_name(key);
    const bool names_one = found != nullptr && found->kind == ConfigNode::Kind::kScalar && found->text != "none";
    return names_one ? found->text : "";
  };
  GivenWeights given{value("model.init_from"), value("checkpoint.resume"), value("checkpoint.dir")};
  if (given.resume == "auto" || given.resume == "never") given.resume.clear();
  return given;
}

// Returns the config that a checkpoint was saved with, without keys of its machine (parallel, device,
// precision.compute) and model.init_from. For an imported checkpoint it has only the shape of the model.
nlohmann::json recorded_config(const Checkpoint& checkpoint) {
  const nlohmann::json& meta = checkpoint.meta();
  nlohmann::json json = meta.contains("config") ? meta.at("config") : nlohmann::json::object();
  for (const char* of_then : {"parallel", "device"}) json.erase(of_then);
  if (json.contains("precision")) json["precision"].erase("compute");
  if (!json.contains("model")) json["model"] = model_config_to_json(checkpoint.model_config());
  json["model"].erase("init_from");
  if (json.contains("data")) json["data"].erase("tokenizer");  // The checkpoint's own tokenizer is used.
  json["checkpoint"]["resume"] = checkpoint.path().string();
  return json;
}

// Returns the config for evaluating the model at `path`.
Config config_of_model(const std::string& path, std::span<const std::string> overrides, ProcessGroup& group) {
  group.throw_on_all_ranks([&] {
    const GivenWeights given = given_weights(overrides);
    for (const std::string& other : {given.init_from, given.resume, given.checkpoint_dir})
      CHECK_INPUT(other.empty(), "{} and {} are both given as the weights to evaluate, expected one of them", path,
                  other);
  });
  const ModelPath model = resolve_same_model(path, group);
  std::optional<Checkpoint> checkpoint;
  if (model.is_checkpoint) checkpoint.emplace(open_same_checkpoint(model.path, group));
  Config config;
  group.throw_on_all_ranks([&] {
    const nlohmann::json json =
        checkpoint ? recorded_config(*checkpoint)
                   : nlohmann::json{{"model", {{"init_from", model.path}}}, {"checkpoint", {{"resume", "never"}}}};
    config = config_from_json(json, model.path, overrides);
    config.checkpoint.resume = checkpoint ? model.path : "never";
  });
  return config;
}

// Takes the shape from the checkpoint that a run resumes, if the shape would otherwise come from model.init_from: a
// resumed run no longer needs those weights. Returns false if no checkpoint can be opened; the error is reported when
// the run resumes it.
bool adopt_resumed_model(Config& config, ProcessGroup& group) {
  try {
    const std::optional<Checkpoint> checkpoint = open_run_checkpoint(config.checkpoint, group);
    if (!checkpoint) return false;
    group.throw_on_all_ranks([&] { adopt_model(config, checkpoint->model_config(), checkpoint->path().string()); });
    return true;
  } catch (const InputError& error) {
    if (!group.shares(error)) throw;
    return false;
  }
}

// Returns whether the path is a Hugging Face directory or its config.json. A config of Octavo has no model_type.
bool is_hf_shape(const std::filesystem::path& path) {
  if (is_directory_at(path)) return path_exists(path / kHfConfigName);
  if (path.filename() != kHfConfigName) return false;
  try {
    return read_json_file(path.string()).contains("model_type");
  } catch (const InputError&) {
    return false;
  }
}

void check_is_directory(const std::string& dir) {
  std::error_code error;
  const bool is_directory = std::filesystem::is_directory(std::filesystem::status(dir, error));
  CHECK_INPUT(error ? error != std::errc::not_a_directory : is_directory,
              "checkpoint.dir {}: is not a directory, expected a directory or a path that does not exist yet", dir);
}

// Looks for the run's own checkpoints (find_own_checkpoints) on rank 0, because other ranks may see other directories.
// `names_run` says that checkpoint.resume belongs to the config of a run, and does not name a checkpoint to evaluate.
void find_checkpoints_of_run(Config& config, ProcessGroup& group, Purpose purpose, bool names_run) {
  if (purpose == Purpose::kSynthetic) return;
  std::string note;
  config.checkpoint.resume = found_by_root("looking for checkpoints", group, [&] {
    check_is_directory(config.checkpoint.dir);
    if (names_run) note = find_own_checkpoints(config);
    return config.checkpoint.resume;
  });
  config.checkpoint.dir = group.broadcast(config.checkpoint.dir);
  if (!note.empty() && purpose == Purpose::kTrain) log_info("{}", note);
}

// Resolves the tokenizer and the ids around documents on rank 0, which reads the files, and sends them to all ranks.
void resolve_tokens(Config& config, ProcessGroup& group, Purpose purpose) {
  if (purpose == Purpose::kSynthetic) return;
  std::vector<std::string> notes;
  const std::string text = found_by_root("looking for the tokenizer, bos and eos", group, [&] {
    const std::optional<Checkpoint> resumed = checkpoint_to_resume(config.checkpoint);
    notes = {resolve_tokenizer(config, purpose, resumed), resolve_document_tokens(config, purpose, resumed)};
    nlohmann::json data = to_json(config).at("data");
    data[kTokenizerHashKey] = config.data.tokenizer_hash;
    return data.dump();
  });
  for (const std::string& note : notes) {
    if (!note.empty()) log_line(LogLevel::kWarning, note);
  }
  const nlohmann::json data = nlohmann::json::parse(text);
  config.data.tokenizer = data.at("tokenizer");
  config.data.tokenizer_hash = data.at(kTokenizerHashKey);
  take_document_tokens(data, config.data);
}

}  // namespace

std::vector<std::string> adopt_initial_model(Config& config, const WeightSource& source) {
  std::vector<std::string> notes = source.notes();
  ModelConfig model = source.model_config();
  const auto is_stated = [&stated = config.model_fields](const char* name) {
    return std::ranges::find(stated, name) != stated.end();
  };
  const nlohmann::json file = source.hugging_face().at(kHfConfigName);
  // The last note says why a model is not tied although its config.json states that it is.
  const bool was_untied = !model.tie_word_embeddings && file.value("tie_word_embeddings", nlohmann::json()) == true;
  CHECK_INPUT(!was_untied || !config.model.tie_word_embeddings || !is_stated("tie_word_embeddings"),
              "{}, but the config's model.tie_word_embeddings is true, expected false", notes.back());
  const ModelConfig preset = config.preset.empty() ? ModelConfig{} : model_preset(config.preset);
  const auto replace = [&](const char* name, auto ModelConfig::*field) {
    const bool is_of_preset = !config.preset.empty() && config.model.*field == preset.*field;
    if (!is_stated(name) || is_of_preset || config.model.*field == model.*field) return;
    notes.push_back(fmt::format("model.{} is {}, which replaces {} of {}", name,
                                shape_to_json<nlohmann::json>(config.model.*field).dump(),
                                shape_to_json<nlohmann::json>(model.*field).dump(), config.init_from));
    model.*field = config.model.*field;
  };
  replace("rope_theta", &ModelConfig::rope_theta);
  replace("rope_scaling", &ModelConfig::rope_scaling);
  adopt_model(config, model, config.init_from);
  return notes;
}

std::unique_ptr<WeightSource> open_planned_weights(const std::string& path) {
  const ModelPath model = resolve_model(path);
  if (model.is_checkpoint) return std::make_unique<CheckpointWeights>(Checkpoint(model.path));
  return std::make_unique<HfWeights>(model.path, false);
}

Config load_config_or_shape(const ConfigArguments& arguments) {
  if (!is_hf_shape(arguments.path)) return load_config(arguments.path, arguments.overrides);
  return config_from_json({{"model", {{"init_from", arguments.path}}}}, arguments.path, arguments.overrides);
}

std::vector<std::string> complete_model(Config& config, ProcessGroup& group, Purpose purpose) {
  // The initial weights of a run that resumes may be gone.
  if (purpose == Purpose::kTrain && !config.init_from.empty() && adopt_resumed_model(config, group)) return {};
  const std::unique_ptr<WeightSource> weights = open_same_weights(config.init_from, group);
  std::vector<std::string> notes;
  group.throw_on_all_ranks([&] {
    if (!weights) return;
    // If the path was a directory of checkpoints, this is the checkpoint that rank 0 chose.
    config.init_from = weights->path().string();
    if (purpose == Purpose::kEvaluate && !config.init_from_given.empty()) {
      const bool is_checkpoint = dynamic_cast<const CheckpointWeights*>(weights.get()) != nullptr;
      config.checkpoint.resume = is_checkpoint ? config.init_from : "never";
    }
    notes = adopt_initial_model(config, *weights);
  });
  return group.is_root() ? notes : std::vector<std::string>();
}

Config load_run_config(const ConfigArguments& arguments, ProcessGroup& group, Purpose purpose, int64_t planned_ranks) {
  const int64_t ranks = planned_ranks > 0 ? planned_ranks : group.size();
  std::error_code error;
  const bool is_model = purpose == Purpose::kEvaluate && std::filesystem::is_directory(arguments.path, error);
  Config config;
  bool names_run = purpose == Purpose::kTrain;
  if (group.all_reduce_max(is_model ? 1 : 0) != 0) {
    config = config_of_model(arguments.path, arguments.overrides, group);
  }
  group.throw_on_all_ranks([&] {
    if (config.source.empty()) {
      config = load_config(arguments.path, arguments.overrides);
      const GivenWeights given = given_weights(arguments.overrides);
      names_run = names_run || given.resume.empty();
      // config.init_from is the given path with ~ and ${NAME} replaced.
      if (!given.init_from.empty()) config.init_from_given = config.init_from;
      CHECK_INPUT(given.init_from.empty() || given.resume.empty() || purpose != Purpose::kEvaluate,
                  "model.init_from={} and checkpoint.resume={} are both given as the weights to evaluate, expected one "
                  "of them",
                  given.init_from, given.resume);
    }
    validate(config, ranks, purpose);
  });
  find_checkpoints_of_run(config, group, purpose, names_run);
  for (const std::string& note : complete_model(config, group, purpose)) log_line(LogLevel::kWarning, note);
  group.throw_on_all_ranks([&] { validate(config, ranks, purpose); });
  resolve_tokens(config, group, purpose);
  return config;
}

}  // namespace octavo

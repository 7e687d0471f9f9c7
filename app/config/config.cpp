#include "app/config/config.h"

#include <algorithm>
#include <filesystem>

#include "app/config/config_keys.h"
#include "app/config/config_node.h"
#include "app/config/config_values.h"
#include "app/config/error_list.h"
#include "app/config/unknown_keys.h"
#include "core/error.h"
#include "core/suggestions.h"
#include "data/tokenizer_identity.h"
#include "kernels/attention/sdpa.h"
#include "model/architecture/model_fields.h"

namespace octavo {

namespace {

using OrderedJson = nlohmann::ordered_json;
using Kind = ConfigNode::Kind;

// Full names of all keys, and of the sections that contain them, each section before its keys.
struct KnownNames {
  std::vector<std::string> all;
  std::vector<std::string> sections;  // Sections, which are not keys themselves.
};
KnownNames known_names() {
  KnownNames names;
  const auto add = [&](const std::string& name) {
    if (std::ranges::find(names.all, name) != names.all.end()) return false;
    names.all.push_back(name);
    return true;
  };
  for (const ConfigKey& key : config_keys()) {
    for (size_t dot = key.name.find('.'); dot != std::string::npos; dot = key.name.find('.', dot + 1)) {
      if (add(key.name.substr(0, dot))) names.sections.push_back(key.name.substr(0, dot));
    }
    add(key.name);
    for (const std::string& item : key.item_keys) names.all.push_back(key.name + "." + item);
  }
  return names;
}

void check_sections(const ConfigNode& tree, const std::vector<std::string>& sections, ErrorList& errors) {
  for (const std::string& section : sections) {
    const ConfigNode* node = tree.find_name(section);
    if (node == nullptr || node->kind == Kind::kMap || node->kind == Kind::kNull) continue;
    errors.collect([&] { refuse_value(*node, section, "a section of keys"); });
  }
}

// Sets the fields of the model's shape that a config may omit because other fields imply them.
void derive_heads(Config& config) {
  ModelConfig& model = config.model;
  const auto is_given = [&given = config.model_fields](const char* field) {
    return std::ranges::find(given, field) != given.end();
  };
  if (model.num_kv_heads == 0) model.num_kv_heads = model.num_heads;
  const bool is_of_preset = model.head_dim != 0 && !is_given("hidden_size") && !is_given("num_heads");
  if (is_given("head_dim") || is_of_preset || model.num_heads == 0 || model.hidden_size == 0) return;
  CHECK_INPUT(model.hidden_size % model.num_heads == 0,
              "{}: model.hidden_size is {}, expected a multiple of model.num_heads {}{}", config.source,
              model.hidden_size, model.num_heads,
              would_work(multiples_near(model.hidden_size, 32 * model.num_heads, {},
                                        [&](int64_t size) { return sdpa_has_kernels_for(size / model.num_heads); })));
  model.head_dim = model.hidden_size / model.num_heads;
}

void check_dataset_paths(const std::vector<DatasetSource>& sources, const char* key, const std::string& source) {
  for (size_t i = 0; i < sources.size(); ++i)
    CHECK_INPUT(!sources[i].paths.empty(),
                "{}: {} has no path in dataset {}, expected {{path: PREFIX, weight: NUMBER}}", source, key, i + 1);
}

void add_up_stages(const ConfigNode& tree, Config& config) {
  if (config.stages.empty()) return;
  int64_t steps = 0;
  for (const StageChanges& stage : config.stages) steps += stage.steps;
  CHECK_INPUT(steps <= kMaxSteps, "{}: the stages have {} steps together, expected at most {}", config.source, steps,
              kMaxSteps);
  const ConfigNode* found = tree.find_name("training.steps");
  CHECK_INPUT(found == nullptr || found->kind == Kind::kNull || config.training.steps == steps,
              "{}: training.steps is {}, but the stages have {} steps together; leave training.steps out, or set it to "
              "their sum",
              found->where, config.training.steps, steps);
  config.training.steps = steps;
}

// Removes the retired keys and values from the tree. Adds a note for a key that has its old default, and an error for
// any other.
void take_retired_keys(ConfigNode& tree, std::vector<std::string>& notes, ErrorList& errors) {
  for (const RetiredKey& key : kRetiredKeys) {
    const auto section = std::ranges::find(tree.keys, key.section);
    if (section == tree.keys.end()) continue;
    ConfigNode& node = tree.children[static_cast<size_t>(section - tree.keys.begin())];
    const auto found = std::ranges::find(node.keys, key.name);
    if (found == node.keys.end()) continue;
    const auto child = node.children.begin() + (found - node.keys.begin());
    if (key.value != nullptr && child->text != key.value) continue;
    const std::string name = fmt::format("{}: {}.{}", child->where, key.section, key.name);
    if (key.value != nullptr) {
      errors.add(fmt::format("{} is {}, which is no longer a valid value: {}", name, key.value, key.sentence));
    } else if (child->kind == Kind::kScalar && child->text == key.old_default) {
      notes.push_back(fmt::format("{} was removed and is ignored: {}", name, key.sentence));
    } else {
      errors.add(fmt::format("{} was removed: {}; leave the key out", name, key.sentence));
    }
    node.keys.erase(found);
    node.children.erase(child);
  }
}

void apply_overrides(ConfigNode& tree, std::span<const std::string> overrides) {
  for (const std::string& override_text : overrides) apply_override(tree, override_text);
}

Config read_config(ConfigNode tree, const std::string& source) {
  Config config;
  config.source = source;
  config.logging.dir = (std::filesystem::path("runs") / std::filesystem::path(source).stem()).string();
  config.data.bos_auto = config.data.eos_auto = true;
  config.data.tokenizer = kAutoTokenizer;
  const KnownNames names = known_names();
  ErrorList errors;
  take_retired_keys(tree, config.notes, errors);
  check_sections(tree, names.sections, errors);
  for (const ConfigKey& key : config_keys()) {
    const ConfigNode* found = tree.find_name(key.name);
    if (found == nullptr) continue;
    errors.collect([&] {
      if (!key.read(*found, config)) refuse_value(*found, key.name, key.expected);
    });
  }
  if (config.checkpoint.dir.empty())
    config.checkpoint.dir = (std::filesystem::path(config.logging.dir) / "checkpoints").string();
  find_unknown_keys(tree, names.all, errors);
  // A missing key is reported only if there were no other errors, because a misspelt key may be the missing one.
  errors.raise();
  derive_heads(config);
  if (!config.preset.empty()) config.model_fields = model_field_names();
  check_dataset_paths(config.data.train, "data.train", source);
  check_dataset_paths(config.data.validation, "data.validation", source);
  add_up_stages(tree, config);
  return config;
}

// Returns the JSON pointer to a key, given its full name.
OrderedJson::json_pointer place_of(const std::string& key) {
  std::string path = "/" + key;
  std::ranges::replace(path, '.', '/');
  return OrderedJson::json_pointer(path);
}

// Returns all keys with their values, nested by section in the order of the table.
OrderedJson config_sections(const Config& config) {
  OrderedJson root;
  for (const ConfigKey& key : config_keys()) {
    if (const std::optional<OrderedJson> value = key.write(config)) root[place_of(key.name)] = *value;
  }
  return root;
}

}  // namespace

bool Config::model_complete() const {
  return model.hidden_size > 0 && model.intermediate_size > 0 && model.num_layers > 0 && model.num_heads > 0 &&
         model.num_kv_heads > 0 && model.head_dim > 0 && model.vocab_size > 0;
}

Config load_config(const std::string& path, std::span<const std::string> overrides) {
  ConfigNode tree = node_from_file(path);
  apply_overrides(tree, overrides);
  return read_config(std::move(tree), path);
}

Config config_from_json(const nlohmann::json& json, const std::string& source, std::span<const std::string> overrides) {
  CHECK_INPUT(json.is_object(), "{} is not a JSON object, expected the sections of a config", source);
  ConfigNode tree = node_from_json(json, source);
  // A checkpoint of an older version may contain retired keys.
  std::vector<std::string> ignored;
  ErrorList errors;
  take_retired_keys(tree, ignored, errors);
  apply_overrides(tree, overrides);
  return read_config(std::move(tree), source);
}

nlohmann::json to_json(const Config& config) { return nlohmann::json(config_sections(config)); }

std::string to_json_text(const Config& config) { return config_sections(config).dump(2) + "\n"; }

std::string value_text(const Config& config, const std::string& key) {
  const std::vector<ConfigKey>& keys = config_keys();
  const bool is_known = std::ranges::any_of(keys, [&](const ConfigKey& known) { return known.name == key; });
  CHECK_INPUT(is_known, "there is no key {}, expected one that octavo config lists", key);
  const OrderedJson value = config_sections(config).value(place_of(key), OrderedJson());
  return value.is_string() ? value.get<std::string>() : yaml_text(value);
}

std::string to_yaml(const Config& config) {
  std::string text;
  const OrderedJson sections = config_sections(config);
  for (const auto& [name, section] : sections.items()) {
    if (!section.is_object()) {
      text += name + ": " + yaml_text(section) + "\n";
      continue;
    }
    text += name + ":\n";
    for (const auto& [key, value] : section.items()) text += "  " + key + ": " + yaml_text(value) + "\n";
  }
  return text;
}

}  // namespace octavo

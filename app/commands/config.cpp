#include <algorithm>
#include <filesystem>
#include <iostream>
#include <span>
#include <system_error>

#include "app/commands/commands.h"
#include "app/config/config_keys.h"
#include "app/config/config_names.h"
#include "app/config/unknown_keys.h"
#include "app/inputs/model_path.h"
#include "app/inputs/tokenizer_source.h"
#include "core/error.h"
#include "core/files/embedded_file.h"
#include "core/files/input_file.h"
#include "core/format.h"

namespace octavo {

std::span<const EmbeddedFile> config_page();  // The beginning of docs/config.md.

namespace {

struct ConfigCommandArguments {
  ConfigArguments config;  // Config whose values are printed. With an empty path, all keys are described.
  bool markdown = false;   // Print the keys as docs/config.md.
  bool json = false;       // Print the values as JSON instead of YAML.
  std::string value;       // Name of the only key whose value is printed. Empty prints all keys.
};

// Formats in which print_keys() prints the keys.
struct Layout {
  const char* heading;
  const char* key;
};

constexpr Layout kText{"{section}\n",
                       "  {name}\n      {sentence}\n      {expected}{unit}; default: {fallback}; class: {class}\n"};
constexpr Layout kMarkdown{
    "## {section}\n\n| key | description | value | default | class |\n| --- | --- | --- | --- | --- |\n",
    "| `{name}` | {sentence} | {expected}{unit} | {fallback} | {class} |\n"};

// Returns whether the name or description of a key, or a name of the key in another program, contains `filter`. Ignores
// case.
bool matches(const ConfigKey& key, const std::string& filter) {
  const auto contains = [&](const std::string& text) {
    return lower_case(text).find(lower_case(filter)) != std::string::npos;
  };
  const std::span<const OtherName> others = other_names();
  return contains(key.name) || contains(key.sentence) || std::ranges::any_of(others, [&](const OtherName& other) {
           return key.name == other.key && contains(other.name);
         });
}

void print_keys(const Layout& layout, const std::string& filter = "") {
  const ConfigKey* last = nullptr;
  for (const ConfigKey& key : config_keys()) {
    if (!matches(key, filter)) continue;
    const std::string section = key.section();
    if (last == nullptr || last->section() != section) {
      std::cout << (last == nullptr ? "" : "\n")
                << fmt::format(fmt::runtime(layout.heading),
                               fmt::arg("section", section.empty() ? "without a section" : section));
    }
    const std::string unit = key.unit.empty() ? "" : fmt::format(" ({})", key.unit);
    std::cout << fmt::format(fmt::runtime(layout.key), fmt::arg("name", key.name), fmt::arg("sentence", key.sentence),
                             fmt::arg("expected", key.expected), fmt::arg("unit", unit),
                             fmt::arg("fallback", key.fallback),
                             fmt::arg("class", name_of(config_names::kKeyClass, key.key_class)));
    last = &key;
  }
  CHECK_INPUT(last != nullptr, "no key of a config has '{}' in its name or description; octavo config prints all keys",
              filter);
}

void print_other_names() {
  std::cout
      << "\n## Names in other programs\n\n"
         "torchtitan, Megatron-LM and Hugging Face use these names. Octavo refuses them and names its own key.\n\n"
         "| name | key of Octavo |\n| --- | --- |\n";
  for (const OtherName& other : other_names()) {
    const std::string key = other.key, note = other.note;
    std::cout << fmt::format("| `{}` | {}{}{} |\n", other.name, key.empty() ? "" : "`" + key + "`",
                             key.empty() || note.empty() ? "" : ", ", note);
  }
}

// Returns whether the argument of `octavo config` is empty or a word to search for, and not the path of a config.
bool is_filter(const std::string& argument) {
  std::error_code error;
  return argument.find_first_of("=/") == std::string::npos && !argument.ends_with(".yaml") &&
         !argument.ends_with(".yml") && !std::filesystem::is_regular_file(argument, error);
}

// Returns the config that a run would use. bos, eos and the tokenizer stay as given if their files are not on this
// machine.
Config resolved_config(const ConfigArguments& arguments, ProcessGroup& group) {
  Config config;
  group.throw_on_all_ranks([&] { config = load_config(arguments.path, arguments.overrides); });
  complete_model(config, group, Purpose::kTrain);
  group.throw_on_all_ranks([&] {
    const std::optional<Checkpoint> resumed = checkpoint_to_resume(config.checkpoint);
    for (const auto resolve : {resolve_document_tokens, resolve_tokenizer}) {
      try {
        resolve(config, Purpose::kTrain, resumed);
      } catch (const UnreadableFile&) {
      }
    }
  });
  return config;
}

int run_config(const ConfigCommandArguments& arguments, ProcessGroup& group) {
  const bool lists_keys = arguments.value.empty() && !arguments.json && arguments.config.overrides.empty() &&
                          is_filter(arguments.config.path);
  Config config;
  if (!lists_keys) config = resolved_config(arguments.config, group);
  const auto print = [&] {
    if (arguments.markdown) {
      std::cout << config_page().front().text << "\n";
      print_keys(kMarkdown);
      print_other_names();
    } else if (lists_keys) {
      print_keys(kText, arguments.config.path);
    } else if (arguments.json) {
      std::cout << to_json_text(config);
    } else {
      std::cout << (arguments.value.empty() ? to_yaml(config) : value_text(config, arguments.value) + "\n");
    }
    return kExitDone;
  };
  return on_root(print)(group);
}

}  // namespace

void add_config(CommandLine& line) {
  const auto [config, arguments] = line.add<ConfigCommandArguments>(
      "config", "print every config key, the keys that match a word, or all values of a config as YAML", run_config,
      "octavo config configs/quickstart.yaml training.steps=100");
  auto* path = config->add_option("config", arguments.config.path,
                                  "CONFIG.yaml, or a WORD to search in names and descriptions of keys");
  add_overrides(config, arguments.config.overrides, "section.key=value, overrides the file");
  config->add_flag("--markdown", arguments.markdown, "print the keys in the format of docs/config.md")->excludes(path);
  auto* value = config->add_option("--value", arguments.value, "print only the value of this key, text without quotes");
  value->needs(path);
  config->add_flag("--json", arguments.json, "print all values of the config as JSON")->needs(path)->excludes(value);
}

}  // namespace octavo

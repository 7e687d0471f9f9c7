#include <algorithm>
#include <cctype>
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
#include "app/process/exit_codes.h"
#include "core/error.h"
#include "core/files/input_file.h"

namespace octavo {

namespace {

struct ConfigCommandArguments {
  ConfigArguments config;  // Config whose values are printed. With an empty path, all keys are described.
  bool markdown = false;   // Print the keys as docs/config.md.
  bool json = false;       // Print the values as JSON instead of YAML.
  std::string value;       // Name of the only key whose value is printed. Empty prints all keys.
};

constexpr const char* kMarkdownIntroduction = R"(# Config

A config is a YAML file with the sections below. `section.key=value` on the command line overrides a key of the file.

- `octavo config CONFIG.yaml [section.key=value ...]` prints the values that a run would use, with all defaults. `--json` prints them as
  JSON. It reads the shape of the model from the checkpoint or from `model.init_from` as the run would.
- `octavo config WORD` prints the keys with WORD in their name or description.
- An unknown key is an error that suggests the nearest known key. All errors of a config are reported together.
- A dotted name, such as `training.steps: 100`, is also read in the file, at the top, in a section and in a stage. A key that is given twice
  is refused. YAML's merge key `<<: *anchor` is read, and the map that it merges may have any name. Tags other than those of
  YAML's core schema are refused.
- The value of an override is YAML. Quotes inside of the argument keep a `#` in it: `logging.dir='"runs/a #1"'`.
- Relative paths are relative to the current directory. A leading `~` in a path stands for the home directory, and `${NAME}` for an
  environment variable. Integers may have an exponent, such as `1e3`.

The class of a key decides whether a resumed run may change it. Keys of the class *free*, such as those of the mesh, checkpoints, logs and
checks, may change at any time. The other keys decide what the run computes. A change of such a key is refused unless
`checkpoint.allow_changes` names its class. A change of a key of the class *schedule* counts only if it changes a step that is still to
come, or the last step of a finished run ([changing a run](schedules.md#changing-a-run)).

`octavo config --markdown` prints this page.

)";

// Formats in which print_keys() prints the keys.
struct Layout {
  const char* introduction;
  const char* heading;
  const char* key;
};

constexpr Layout kText{"", "{section}\n",
                       "  {name}\n      {sentence}\n      {expected}{unit}; default: {fallback}; class: {class}\n"};
constexpr Layout kMarkdown{
    kMarkdownIntroduction,
    "## {section}\n\n| key | description | value | default | class |\n| --- | --- | --- | --- | --- |\n",
    "| `{name}` | {sentence} | {expected}{unit} | {fallback} | {class} |\n"};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// Returns whether the name or description of a key, or a name of the key in another program, contains `filter`. Ignores
// case.
bool matches(const ConfigKey& key, const std::string& filter) {
  const auto contains = [&](const std::string& text) { return lower(text).find(lower(filter)) != std::string::npos; };
  const std::span<const OtherName> others = other_names();
  return contains(key.name) || contains(key.sentence) ||
         std::any_of(others.begin(), others.end(),
                     [&](const OtherName& other) { return key.name == other.key && contains(other.name); });
}

void print_keys(const Layout& layout, const std::string& filter = "") {
  std::cout << layout.introduction;
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
  group.agree([&] { config = load_config(arguments.path, arguments.overrides); });
  complete_model(config, group, Purpose::kTrain);
  group.agree([&] {
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

// Prints the values of a config on rank 0.
int print_values(const ConfigCommandArguments& arguments, ProcessGroup& group) {
  const Config config = resolved_config(arguments.config, group);
  const auto print = [&] {
    if (arguments.json) {
      std::cout << to_json_text(config);
    } else {
      std::cout << (arguments.value.empty() ? to_yaml(config) : value_text(config, arguments.value) + "\n");
    }
    return kExitDone;
  };
  return on_root(print)(group);
}

// Prints the keys, or those that match the word in `arguments`.
int print_keys(const ConfigCommandArguments& arguments) {
  print_keys(arguments.markdown ? kMarkdown : kText, arguments.config.path);
  if (arguments.markdown) print_other_names();
  return kExitDone;
}

int run_config(const ConfigCommandArguments& arguments, ProcessGroup& group) {
  const bool lists_keys = arguments.value.empty() && !arguments.json && arguments.config.overrides.empty() &&
                          is_filter(arguments.config.path);
  if (lists_keys) return on_root([&] { return print_keys(arguments); })(group);
  return print_values(arguments, group);
}

}  // namespace

void add_config(CommandLine& line) {
  auto& arguments = line.arguments<ConfigCommandArguments>();
  CLI::App* config = line.add(
      "config", "print every config key, the keys that match a word, or all values of a config as YAML",
      [&](ProcessGroup& group) { return run_config(arguments, group); },
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

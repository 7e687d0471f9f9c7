#include <iostream>

#include "app/commands.h"
#include "app/config/config_keys.h"
#include "app/run/document_tokens.h"
#include "app/run/former_checkpoints.h"
#include "core/error.h"
#include "core/files/input_file.h"

namespace octavo {

namespace {

constexpr const char* kMarkdownIntroduction = R"(# Config

A config is a YAML file of the sections below. Every key can be given on the command line too, as `section.key=value`, in place of
the file's; `octavo config CONFIG.yaml [section.key=value ...]` prints what a run would read, with all defaults. A key that there is
not is an error that suggests the nearest one. Relative paths are relative to the current directory.

This page is printed by `octavo config --markdown`.

)";

// How the keys are printed, in the names of print_keys.
struct Layout {
  const char* introduction;
  const char* heading;
  const char* key;
};

constexpr Layout kText{"", "{section}\n", "  {name}\n      {sentence}\n      {expected}{unit}; default: {fallback}\n"};
constexpr Layout kMarkdown{kMarkdownIntroduction,
                           "## {section}\n\n| key | what it says | value | default |\n| --- | --- | --- | --- |\n",
                           "| `{name}` | {sentence} | {expected}{unit} | {fallback} |\n"};

void print_keys(const Layout& layout) {
  std::cout << layout.introduction;
  const ConfigKey* last = nullptr;
  for (const ConfigKey& key : config_keys()) {
    const std::string section = key.section();
    if (last == nullptr || last->section() != section) {
      std::cout << (last == nullptr ? "" : "\n")
                << fmt::format(fmt::runtime(layout.heading),
                               fmt::arg("section", section.empty() ? "of no section" : section));
    }
    const std::string unit = key.unit.empty() ? "" : fmt::format(" ({})", key.unit);
    std::cout << fmt::format(fmt::runtime(layout.key), fmt::arg("name", key.name), fmt::arg("sentence", key.sentence),
                             fmt::arg("expected", key.expected), fmt::arg("unit", unit),
                             fmt::arg("fallback", key.fallback));
    last = &key;
  }
}

// The config that a run would take; bos and eos stay auto where the token files are not here.
Config resolved_config(const ConfigArguments& arguments) {
  Config config = load_config(arguments.path, arguments.overrides);
  find_former_checkpoints(config);
  try {
    resolve_document_tokens(config, Purpose::kTrain);
  } catch (const UnreadableFile&) {
  }
  return config;
}

}  // namespace

int config_command(const ConfigCommandArguments& arguments) {
  if (arguments.config.path.empty()) {
    print_keys(arguments.markdown ? kMarkdown : kText);
  } else {
    std::cout << to_yaml(resolved_config(arguments.config));
  }
  return kExitDone;
}

}  // namespace octavo

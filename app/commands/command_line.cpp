#include "app/commands/command_line.h"

#include <algorithm>
#include <charconv>
#include <iostream>
#include <memory>
#include <optional>
#include <system_error>

#include "app/commands/commands.h"
#include "app/config/config_keys.h"
#include "app/config/unknown_keys.h"
#include "core/error.h"
#include "core/suggestions.h"

namespace octavo {

namespace {

// Prints an option as "--gpus INT (from 1 to 1048576; default: 8)".
class HelpFormatter : public CLI::Formatter {
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0) return "";  // A flag.
    const std::string type = option->get_type_name();
    const size_t colon = type.find(':');
    std::vector<std::string> notes;
    if (option->get_required()) notes.emplace_back("required");
    if (colon != std::string::npos) notes.push_back(type.substr(colon + 1));
    const std::string fallback = option->get_default_str();
    if (!fallback.empty() && fallback != "[]") notes.push_back("default: " + fallback);
    const bool several = option->get_expected_max() == CLI::detail::expected_max_vector_size;
    return fmt::format(" {}{}{}", type.substr(0, colon), several ? " ..." : "",
                       notes.empty() ? "" : fmt::format(" ({})", fmt::join(notes, "; ")));
  }
};

// Refuses empty values, because an unset variable in a script must not be taken for a path or for no value.
void refuse_empty_texts(CLI::App& app) {
  const auto check = [](const std::string& text) {
    return std::string(text.empty() ? "is empty, expected a text" : "");
  };
  for (CLI::App* command : app.get_subcommands({})) {
    for (CLI::Option* option : command->get_options()) {
      const bool may_be_empty = option->check_name("overrides") || option->check_name("--prompt");
      if (option->get_type_name() == "TEXT" && !may_be_empty) option->check(check);
    }
  }
}

// Returns an option without the dashes at its beginning.
std::string without_dashes(const std::string& option) {
  return option.substr(std::min(option.find_first_not_of('-'), option.size()));
}

// Returns "there is no option --stpes; did you mean --steps?".
std::string no_such(const std::string& what, const std::string& written, const std::vector<std::string>& known) {
  const std::string message = fmt::format("there is no {} {}", what, written);
  if (const std::optional<std::string> meant = nearest_name(written, known)) {
    return fmt::format("{}; did you mean {}?", message, *meant);
  }
  return fmt::format("{}, expected {}", message, fmt::join(known, ", "));
}

// Names that other programs have for commands, and what to use here.
constexpr std::pair<const char*, const char*> kOtherCommands[] = {
    {"convert", "octavo import, or octavo export"},
    {"pretrain", "octavo train"},
    {"preprocess", "octavo pack for bytes, or scripts/tokenize_hf.py for a Hugging Face tokenizer"},
    {"sample", "octavo generate"},
    {"tokenize", "octavo pack for bytes, or scripts/tokenize_hf.py for a Hugging Face tokenizer"},
};

std::string no_such_command(const std::string& written, const std::vector<std::string>& known) {
  for (const auto& [name, replacement] : kOtherCommands) {
    if (written == name) return fmt::format("there is no command {}; use {}", written, replacement);
  }
  return no_such("command", written, known);
}

// Returns the name of the positional argument that `option` probably stands for, such as config for --config,
// --config-file or --job.config_file. Empty if there is none.
std::string argument_meant(const CLI::App& command, const std::string& option) {
  std::string name = without_dashes(option);
  name = name.substr(name.rfind('.') + 1);
  name = name.substr(0, name.find_first_of("-_"));
  const CLI::Option* const found = command.get_option_no_throw(name);
  return found != nullptr && found->get_positional() ? name : "";
}

// Returns what to write instead of an option that has the name of a config key, here or in another program: "did you
// mean the config key training.steps=VALUE?" for "--steps". Empty if there is no such key, or several.
std::string config_key_hint(const std::string& option) {
  std::string name = without_dashes(option);
  std::ranges::replace(name, '-', '_');
  std::string found;
  for (const ConfigKey& key : config_keys()) {
    if (key.name != name && key.name != fmt::format("{}.{}", key.section(), name)) continue;
    if (!found.empty()) return "";
    found = key.name;
  }
  if (!found.empty()) return fmt::format("did you mean the config key {}=VALUE?", found);
  const OtherName* const other = find_other_name(name);
  return other == nullptr ? "" : with_note(*other, fmt::format("write the config key {}=VALUE", other->key));
}

// Describes an argument that `command` does not accept.
std::string describe_extra(const CLI::App& command, const std::string& extra) {
  if (!extra.starts_with('-')) return fmt::format("the argument '{}' is one too many", extra);
  const std::string name = extra.substr(0, extra.find('='));
  if (const std::string argument = argument_meant(command, name); !argument.empty()) {
    return fmt::format("there is no option {}; write the {} without an option, directly after octavo {}", name,
                       argument, command.get_name());
  }
  if (const std::string hint = config_key_hint(name);
      command.get_option_no_throw("overrides") != nullptr && !hint.empty()) {
    return fmt::format("there is no option {}; {}", name, hint);
  }
  std::vector<std::string> options;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& known : option->get_lnames()) options.push_back("--" + known);
  }
  return no_such("option", name, options);
}

// Describes an error in the arguments of `command`.
std::string describe_in(const CLI::App& command, const CLI::ParseError& error) {
  std::string sentence = error.what();
  const std::string option = sentence.substr(0, sentence.find_first_of(": "));
  if (dynamic_cast<const CLI::ValidationError*>(&error) != nullptr) {
    return sentence.erase(sentence.find(':'), 1);  // Removes the colon in "--steps: is 'x', expected ...".
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    if (sentence.ends_with(" missing")) return option + " has no value, expected one";
    if (sentence.ends_with(" flag override")) return fmt::format("--{} has a value, expected none", option);
    return option + " is given several times, expected once";
  }
  // A misspelt option may be the reason why a required one is missing.
  const bool may_be_extra = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
                            dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  const std::vector<std::string> extras = command.remaining();
  return may_be_extra && !extras.empty() ? describe_extra(command, extras.front()) : sentence;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

// Returns a rule that accepts the texts for which `allows` is true. `expected` completes the message that refuses a
// value, and `type` is shown in the help.
template <typename Allows>
CLI::Validator value(const Allows& allows, const std::string& expected, const std::string& type) {
  const auto check = [=](const std::string& text) {
    return allows(text) ? "" : fmt::format("is '{}', expected {}", text, expected);
  };
  return CLI::Validator(check, type);
}

// Parses the whole text as a number in plain decimal digits.
template <typename Number>
std::optional<Number> parse(const std::string& text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

}  // namespace

Command on_root(std::function<int()> work) {
  return [work = std::move(work)](ProcessGroup& group) {
    int exit_code = kExitDone;
    group.throw_on_all_ranks([&] {
      if (group.is_root()) exit_code = work();
    });
    return static_cast<int>(group.all_reduce_max(exit_code));
  };
}

CommandLine::CommandLine(CLI::App& app, StartupTimer& timer, Console& console)
    : app_(app), timer_(timer), console_(console) {
  app.require_subcommand(1);
  app.formatter(std::make_shared<HelpFormatter>());
  app.option_defaults()->always_capture_default()->disable_flag_override();
  app.footer("octavo COMMAND --help prints the options of a command, their defaults and an example.");
  for (const auto add_command : kCommands) add_command(*this);
  refuse_empty_texts(app);
}

CLI::App* CommandLine::add(const std::string& name, const std::string& text, Command command,
                           const std::string& example) {
  CLI::App* const added = app_.add_subcommand(name, text);
  added->callback([this, command = std::move(command)] { command_ = command; });
  if (!example.empty()) added->footer("Example:\n  " + example);
  return added;
}

void CommandLine::add_json(CLI::App* command, bool& json) {
  command->add_flag_callback(
      "--json", [&] { json = prints_json_ = true; }, "print JSON");
}

std::string CommandLine::describe(const CLI::ParseError& error, const std::string& first_argument) const {
  const std::vector<CLI::App*> called = app_.get_subcommands();
  if (!called.empty()) {
    const CLI::App& command = app_.remaining().empty() ? *called.front() : app_;
    return fmt::format("{} (see octavo {} --help)", describe_in(command, error), called.front()->get_name());
  }
  const std::vector<std::string> names = command_names(app_);
  return (first_argument.empty() ? fmt::format("there is no command, expected {}", fmt::join(names, ", "))
                                 : no_such_command(first_argument, names)) +
         " (see octavo --help)";
}

// Adds `octavo help COMMAND`, which prints the same as `octavo COMMAND --help`.
void add_help(CommandLine& line) {
  auto& name = line.arguments<std::string>();  // Name of a command. Empty for octavo itself.
  const auto print = [&] {
    const CLI::App& app = line.app();
    const std::vector<std::string> names = command_names(app);
    const bool is_known = std::ranges::find(names, name) != names.end();
    CHECK_INPUT(name.empty() || is_known, "{} (see octavo --help)", no_such_command(name, names));
    std::cout << (name.empty() ? app.get_formatter()->make_help(&app, app.get_name(), CLI::AppFormatMode::Normal)
                               : app.get_subcommand(name)->help("octavo"));
    return kExitDone;
  };
  line.add("help", "print the help of a command", on_root(print))
      ->add_option("command", name, "the command")
      ->default_str("");
}

CLI::Validator number(double least, double most) {
  const std::string range = fmt::format("from {:g} to {:g}", least, most);
  const auto allows = [=](const std::string& text) {
    const std::optional<double> number = parse<double>(text);
    return number && least <= *number && *number <= most;
  };
  return value(allows, "a number " + range, range);
}

CLI::Validator integer(uint64_t least, uint64_t most) {
  const std::string range = fmt::format("from {} to {}", least, most);
  const auto allows = [=](const std::string& text) {
    const std::optional<uint64_t> number = parse<uint64_t>(text);
    const bool is_plain = text.size() == 1 || !text.starts_with('0');
    return number && is_plain && least <= *number && *number <= most;
  };
  return value(allows, "an integer " + range, range);
}

CLI::Validator one_of(const std::vector<std::string>& choices) {
  const auto allows = [=](const std::string& text) { return std::ranges::find(choices, text) != choices.end(); };
  return value(allows, fmt::format("one of {}", fmt::join(choices, ", ")),
               fmt::format("{{{}}}", fmt::join(choices, ",")));
}

void add_overrides(CLI::App* command, std::vector<std::string>& overrides, const char* what) {
  command->add_option("overrides", overrides, what)->default_str("");
}

void add_config_arguments(CLI::App* command, ConfigArguments& arguments, const char* what) {
  command->add_option("config", arguments.path, what)->required();
  add_overrides(command, arguments.overrides, "section.key=value, overrides the file");
}

void check_one_process(const char* command, ProcessGroup& group) {
  group.throw_on_all_ranks([&] {
    CHECK_INPUT(group.size() == 1,
                "{} was started on {} ranks, expected one process; --gpus says how many ranks the run has", command,
                group.size());
  });
}

}  // namespace octavo

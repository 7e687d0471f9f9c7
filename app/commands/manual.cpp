#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iostream>
#include <vector>

#include "app/commands/commands.h"
#include "app/config/config_keys.h"
#include "app/process/exit_codes.h"

namespace octavo {

namespace {

struct ManualArguments {
  bool man = false;
  bool bash = false;
};

// A positional argument or an option, as described in the manual and in shell completion.
struct Argument {
  std::string name;  // "--dtype", or the name of a positional argument.
  bool positional = false;
  bool required = false;
  // Placeholder of the value, such as "FILE" or "float32|bfloat16". Empty for a flag.
  std::string value;
  std::vector<std::string> choices;  // All allowed values, if they are limited to a list.
  std::string text;
  std::string fallback;  // Default value. Empty if there is none.
};

// Returns the choices between the braces of CLI11's type name, such as "TEXT:{auto,cpu,cuda}".
std::vector<std::string> choices_of(const std::string& type) {
  const size_t begin = type.find(":{");
  if (begin == std::string::npos || type.back() != '}') return {};
  return CLI::detail::split(type.substr(begin + 2, type.size() - begin - 3), ',');
}

Argument describe(const CLI::Option& option) {
  Argument a;
  a.positional = option.get_positional();
  const std::vector<std::string>& long_names = option.get_lnames();
  a.name = a.positional ? option.get_name(true) : long_names.empty() ? "" : "--" + long_names.front();
  a.required = option.get_required();
  a.text = option.get_description();
  if (option.get_items_expected_max() > 0) {
    const std::string type = option.get_type_name();
    a.choices = choices_of(type);
    a.value = a.choices.empty() ? type.substr(0, type.find(':')) : fmt::format("{}", fmt::join(a.choices, "|"));
    a.fallback = option.get_default_str();
  }
  return a;
}

std::vector<Argument> arguments_of(const CLI::App& command) {
  std::vector<Argument> all;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_group().empty()) all.push_back(describe(*option));
  }
  return all;
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) { return !command->get_group().empty(); });
}

bool takes_overrides(const CLI::App& command) {
  const std::vector<Argument> all = arguments_of(command);
  return std::any_of(all.begin(), all.end(), [](const Argument& a) { return a.positional && a.name == "overrides"; });
}

// Escapes text for roff, so that dashes can be searched and copied and no line starts with a roff request.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool begins_line = out.empty() || out.back() == '\n';
    if (begins_line && (c == '.' || c == '\'')) out += "\\&";
    if (c == '-' || c == '\\') out += c == '-' ? "\\" : "\\e";
    if (c != '\\') out += c;
  }
  return out;
}

void add_arguments(const std::vector<Argument>& arguments, bool positional, std::string& page) {
  for (const Argument& a : arguments) {
    if (a.positional != positional) continue;
    page += fmt::format(".TP\n\\fB{}\\fR{}\n{}{}\n", roff(a.name),
                        a.value.empty() || positional ? "" : fmt::format(" \\fI{}\\fR", roff(a.value)), roff(a.text),
                        a.fallback.empty() ? "" : fmt::format(" (default: {})", roff(a.fallback)));
  }
}

std::string synopsis(const CLI::App& command, const std::vector<Argument>& arguments) {
  std::string line = fmt::format(".B octavo {}\n[\\fIoptions\\fR]", roff(command.get_name()));
  for (const Argument& a : arguments) {
    if (!a.positional) continue;
    const std::string several = a.name == "overrides" ? " ..." : "";
    line +=
        a.required ? fmt::format(" \\fI{}\\fR", roff(a.name)) : fmt::format(" [\\fI{}\\fR{}]", roff(a.name), several);
  }
  return line + "\n";
}

std::string key_words() {
  std::string words;
  for (const ConfigKey& key : config_keys()) words += fmt::format("{}{}=", words.empty() ? "" : " ", key.name);
  return words;
}

// Returns the manual page octavo(1) in roff, with every command, option and config key.
std::string manual_page(const CLI::App& app) {
  std::string page = fmt::format(".TH OCTAVO 1 \"\" \"{}\" \"User Commands\"\n", roff(app.version()));
  page += fmt::format(".SH NAME\noctavo \\- pretrain Llama\\-3\\-family language models\n.SH SYNOPSIS\n");
  for (const CLI::App* command : commands_of(app)) page += synopsis(*command, arguments_of(*command)) + ".br\n";
  page += fmt::format(".SH DESCRIPTION\n{}\nUnder mpirun or srun it is started as one process per GPU.\n.SH COMMANDS\n",
                      roff(app.get_description()));
  for (const CLI::App* command : commands_of(app)) {
    const std::vector<Argument> arguments = arguments_of(*command);
    page += fmt::format(".SS {}\n{}\n", roff(command->get_name()), roff(command->get_description()));
    add_arguments(arguments, true, page);
    add_arguments(arguments, false, page);
    if (!command->get_footer().empty()) page += fmt::format(".PP\n.nf\n{}\n.fi\n", roff(command->get_footer()));
  }
  page += ".SH EXIT STATUS\n";
  for (const auto& [code, meaning] : {std::pair{0, "done"}, std::pair{1, "failed at run time"},
                                      std::pair{2, "bad command line, config or input file, found before any training"},
                                      std::pair{3, "stopped by a signal after saving a checkpoint"}}) {
    page += fmt::format(".TP\n{}\n{}\n", code, meaning);
  }
  page += ".SH CONFIG KEYS\nIn the YAML file, as sections with keys, or on the command line as section.key=value.\n";
  for (const ConfigKey& key : config_keys()) {
    page += fmt::format(".TP\n\\fB{}\\fR\n{}", roff(key.name), roff(key.sentence));
    page += fmt::format("{} Expected {}", key.sentence.empty() || key.sentence.ends_with('.') ? "" : ".",
                        roff(key.expected));
    if (!key.unit.empty()) page += fmt::format(", in {}", roff(key.unit));
    page += key.fallback.empty() ? ".\n" : fmt::format("; default: {}.\n", roff(key.fallback));
  }
  return page + ".SH SEE ALSO\n.BR mpirun (1),\n.BR srun (1)\n";
}

// Returns a bash script that completes commands, options, choices of options, and config keys for commands that accept
// overrides.
std::string bash_completion(const CLI::App& app) {
  std::string names;
  std::string words;   // One case per command, with its options and whether it accepts overrides.
  std::string values;  // One case per option that has choices or whose value may be a file.
  for (const CLI::App* command : commands_of(app)) {
    const std::string& name = command->get_name();
    names += name + " ";
    std::string options;
    for (const Argument& a : arguments_of(*command)) {
      if (a.positional) continue;
      options += (options.empty() ? "" : " ") + a.name;
      if (a.value.empty()) continue;
      const std::string reply = a.choices.empty() ? ""
                                                  : fmt::format(" COMPREPLY=($(compgen -W '{}' -- \"$current\"));",
                                                                fmt::join(a.choices, " "));
      values += fmt::format("    '{} {}'){} return ;;\n", name, a.name, reply);
    }
    words += fmt::format("    {}) options='{}'{} ;;\n", name, options, takes_overrides(*command) ? " overrides=1" : "");
  }
  return fmt::format(R"(# Completion of octavo's command lines in bash, made by octavo manual --bash.
_octavo() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" command="" options="" overrides=0 before=0 i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    if [[ "${{COMP_WORDS[i]}}" == -* ]]; then continue; fi
    if [[ -z "$command" ]]; then command="${{COMP_WORDS[i]}}"; else before=$((before + 1)); fi
  done
  if [[ -z "$command" ]]; then
    COMPREPLY=($(compgen -W '{}--help --version' -- "$current"))
    return
  fi
  case "$command ${{COMP_WORDS[COMP_CWORD - 1]}}" in
{}  esac
  case "$command" in
{}  esac
  if [[ "$current" == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$current"))
  elif ((overrides && before)) && [[ "$current" != = && "${{COMP_WORDS[COMP_CWORD - 1]}}" != = ]]; then
    COMPREPLY=($(compgen -W '{}' -- "$current"))
    compopt -o nospace 2>/dev/null || true
  fi
}}
complete -o bashdefault -o default -F _octavo octavo
)",
                     names, values, words, key_words());
}

}  // namespace

void add_manual(CommandLine& line) {
  auto& arguments = line.arguments<ManualArguments>();
  const auto print = [&] {
    std::cout << (arguments.man ? manual_page(line.app()) : bash_completion(line.app()));
    return kExitDone;
  };
  CLI::App* manual = line.add("manual", "print the manual page, or the completion for bash", on_root(print));
  manual->require_option(1);
  manual->add_flag("--man", arguments.man, "print the manual page octavo(1)");
  manual->add_flag("--bash", arguments.bash, "print the completion for bash");
}

}  // namespace octavo

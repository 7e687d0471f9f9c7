// The command line with its subcommands, the rules for the values of their options, and options that several of them
// have. app/commands/commands.h lists the subcommands, and the file of each describes its options.
#pragma once

#include <CLI/CLI.hpp>
#include <any>
#include <deque>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "app/inputs/run_config.h"
#include "app/process/console.h"
#include "app/process/exit_codes.h"
#include "app/process/startup_timer.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

// The work of a subcommand, which runs on every rank. Returns the exit code of the process (app/process/exit_codes.h).
using Command = std::function<int(ProcessGroup&)>;

// Returns a command for work that needs only one rank: rank 0 runs `work`, and all ranks return its exit code.
Command on_root(std::function<int()> work);

class CommandLine {
 public:
  // Adds all subcommands to `app`. `app.parse()` then selects the command.
  // Requires: `app`, `timer` and `console` outlive the object.
  CommandLine(CLI::App& app, StartupTimer& timer, Console& console);
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // Adds a subcommand with the description `text`. `example` is printed at the end of its help.
  CLI::App* add(const std::string& name, const std::string& text, Command command, const std::string& example = "");
  // Adds a subcommand whose work is run(arguments, group), or run(arguments) on rank 0 only (on_root).
  template <typename Arguments, typename Run>
  std::pair<CLI::App*, Arguments&> add(const std::string& name, const std::string& text, Run run,
                                       const std::string& example = "") {
    Arguments& values = arguments<Arguments>();
    Command command;
    if constexpr (std::is_invocable_v<Run, Arguments&, ProcessGroup&>) {
      command = [run, &values](ProcessGroup& group) { return run(values, group); };
    } else {
      command = on_root([run, &values] { return run(values); });
    }
    return {add(name, text, std::move(command), example), values};
  }
  // Creates a value that lives as long as the command line, to hold the arguments of a subcommand.
  template <typename Arguments>
  Arguments& arguments() {
    return std::any_cast<Arguments&>(arguments_.emplace_back(Arguments{}));
  }
  // Adds the option --json. With it, standard output contains one JSON value and no lines for people.
  void add_json(CLI::App* command, bool& json);

  CLI::App& app() { return app_; }
  StartupTimer& timer() { return timer_; }  // Timer that started at the launch of the process.
  Console& console() { return console_; }   // Console that the log is written to.
  // Returns the command that parse() selected.
  const Command& command() const { return command_; }
  bool prints_json() const { return prints_json_; }

  // Describes an error of parse() in a sentence that names the command or option, what was found and what was expected.
  // `first_argument` is the first argument of the command line, or empty.
  std::string describe(const CLI::ParseError& error, const std::string& first_argument) const;

 private:
  CLI::App& app_;
  StartupTimer& timer_;
  Console& console_;
  std::deque<std::any> arguments_;
  Command command_;
  bool prints_json_ = false;
};

inline constexpr const char* kModelHelp =
    "MODEL: a checkpoint, a directory of checkpoints or a run folder (their newest one), or a Hugging Face directory";
inline constexpr const char* kEmaHelp = "use the moving average of the weights (optimizer.ema_decay)";
// Maximum value of --document-length.
inline constexpr int kMaxDocumentLength = 1'000'000'000;

// Rules for values. They are used instead of CLI11's rules, which differ from those of config keys: CLI11 reads 010 as
// eight and -1 as a large seed, and accepts NaN. Bounds are inclusive.
CLI::Validator number(double least, double most);
CLI::Validator integer(uint64_t least, uint64_t most);
CLI::Validator one_of(const std::vector<std::string>& choices);

void add_overrides(CLI::App* command, std::vector<std::string>& overrides, const char* what);
void add_config_arguments(CLI::App* command, ConfigArguments& arguments, const char* what = "CONFIG.yaml");

// Throws an InputError if there are several ranks, because `command` plans the run for the ranks of --gpus. A
// collective.
void check_one_process(const char* command, ProcessGroup& group);

}  // namespace octavo

// The command line: its subcommands, each described by its file (app/commands/commands.h), and the errors of a command
// line.
#pragma once

#include <CLI/CLI.hpp>
#include <any>
#include <deque>
#include <functional>
#include <string>

#include "app/process/console.h"
#include "app/process/startup_timer.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

// A subcommand's work, which every rank does. Returns the process's exit code.
using Command = std::function<int(ProcessGroup&)>;

// Returns a command that works only on files: under mpirun rank 0 runs it, and the others share its result.
Command on_root(std::function<int()> work);

class CommandLine {
 public:
  // Describes all subcommands to `app`, whose parse() finds the command. All three must outlive the command line.
  CommandLine(CLI::App& app, StartupTimer& timer, Console& console);
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // Adds a subcommand. `example` is printed at the end of its help.
  CLI::App* add(const std::string& name, const std::string& text, Command command, const std::string& example = "");
  // Returns arguments that live as long as the command line, for the options of a subcommand.
  template <typename Arguments>
  Arguments& arguments() {
    return std::any_cast<Arguments&>(arguments_.emplace_back(Arguments{}));
  }
  // Adds --json, with which standard output holds one JSON value and so no lines for people.
  void add_json(CLI::App* command, bool& json);

  CLI::App& app() { return app_; }
  StartupTimer& timer() { return timer_; }  // since the launch
  Console& console() { return console_; }   // where the log goes
  // Returns the command that the parsed arguments ask for.
  const Command& command() const { return command_; }
  bool prints_json() const { return prints_json_; }

  // Returns the error of parse() as a sentence with the command or option, what was found and what was expected.
  // `first_argument` is the first word of the command line, which may be empty.
  std::string describe(const CLI::ParseError& error, const std::string& first_argument) const;

 private:
  CLI::App& app_;
  StartupTimer& timer_;
  Console& console_;
  std::deque<std::any> arguments_;
  Command command_;
  bool prints_json_ = false;
};

}  // namespace octavo

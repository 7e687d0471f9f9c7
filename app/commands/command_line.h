// The command line, described once: its subcommands, their options, and what each of them runs.
#pragma once

#include <functional>
#include <string>

#include "app/commands/commands.h"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace octavo {

// What a subcommand does, on every rank; the process's exit code.
using Command = std::function<int(ProcessGroup&)>;

// What the command line says. Each subcommand reads its own part; `command` runs it.
struct CommandLine {
  CommandLine(StartupTimer& startup, Console& output) : timer(startup), console(output) {}

  ConfigArguments config;
  EvaluateArguments evaluate;
  BenchArguments bench;
  DoctorArguments doctor;
  PlanArguments plan;
  PlanArguments dry_run;  // of train
  bool is_dry_run = false;
  ConfigCommandArguments keys;
  GenerateArguments generate;
  InspectArguments inspect;
  ReportArguments report;
  PackOptions pack;
  ImportArguments import_hf;
  ExportArguments export_hf;
  std::string help_of;  // the command to print the help of; empty: octavo itself
  StartupTimer& timer;
  Console& console;
  Command command;

  // Whether standard output is to hold one JSON value, and so no lines for people.
  bool asks_for_json() const { return bench.json || doctor.json || plan.json; }
};

// Adds the subcommands to `app`, whose parse() fills in `line`, which must outlive it.
void describe_command_line(CLI::App& app, CommandLine& line);

// What parse() found wrong, as a sentence that names the command or option, what was found and what was expected.
// `first_argument`: the first word of the command line, empty where there is none.
std::string describe(const CLI::ParseError& error, const CLI::App& app, const std::string& first_argument);

}  // namespace octavo

// The subcommands of octavo. Each is a function in the file of its name, which adds its options to the command line and
// names the function to run. A new subcommand is a file, a declaration and an entry of kCommands.
#pragma once

#include "app/commands/command_line.h"

namespace octavo {

void add_train(CommandLine& line);
void add_evaluate(CommandLine& line);
void add_bench(CommandLine& line);
void add_doctor(CommandLine& line);
void add_generate(CommandLine& line);
void add_plan(CommandLine& line);
void add_config(CommandLine& line);
void add_pack(CommandLine& line);
void add_report(CommandLine& line);
void add_inspect(CommandLine& line);
void add_import(CommandLine& line);
void add_export(CommandLine& line);
void add_help(CommandLine& line);

// Subcommands in the order of octavo --help.
inline constexpr void (*kCommands[])(CommandLine&) = {add_train,  add_evaluate, add_bench, add_doctor, add_generate,
                                                      add_plan,   add_config,   add_pack,  add_report, add_inspect,
                                                      add_import, add_export,   add_help};

}  // namespace octavo

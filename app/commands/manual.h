// The manual page and the completion of command lines in bash, made from the description of the command line.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace octavo {

// octavo(1) in roff, for man: every command and option, and every key of a config.
std::string manual_page(const CLI::App& app);

// Returns a script for bash that completes commands, options, their choices, and config keys where a command takes
// overrides.
std::string bash_completion(const CLI::App& app);

}  // namespace octavo

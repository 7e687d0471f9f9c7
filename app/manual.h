// The manual page and what completes command lines in a shell, made from the description of the command line.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace octavo {

// octavo(1) in roff, for man: every command and option, and every key of a config.
std::string manual_page(const CLI::App& app);

// A script for that shell. Completes commands, options, their choices, and the keys of configs where a command takes
// overrides.
std::string bash_completion(const CLI::App& app);
std::string zsh_completion(const CLI::App& app);
std::string fish_completion(const CLI::App& app);

}  // namespace octavo

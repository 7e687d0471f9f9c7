// The config of a run as text by key, to be compared with another's.
#pragma once

#include <map>
#include <string>

namespace octavo {

// DIR/config.yaml as "section.key" to its value, lists and their maps in one line; empty without the file. InputError
// where it is no YAML.
std::map<std::string, std::string> read_config_values(const std::string& dir);

}  // namespace octavo

// Reports the keys of a config that Octavo does not have, and suggests the keys that were probably meant.
#pragma once

#include <string>
#include <vector>

#include "app/config/config_node.h"
#include "app/config/error_list.h"

namespace octavo {

// Adds an error to `errors` for each key of `root` that is not in `known_keys`, the full names of all keys and
// sections. The error names Octavo's key if another program uses the unknown name (app/config/other_names.h). Otherwise
// it names the most similar key, or else lists the keys of the section.
void find_unknown_keys(const ConfigNode& root, const std::vector<std::string>& known_keys, ErrorList& errors);

}  // namespace octavo

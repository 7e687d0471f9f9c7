// Finds the keys of a config that Octavo does not have, and says which keys were probably meant.
#pragma once

#include <string>
#include <vector>

#include "app/config/config_node.h"
#include "app/config/error_list.h"

namespace octavo {

// Adds an error to `errors` for each key of `root` that is not one of the full names `known_keys`, which include the
// sections. The error names Octavo's key if another program uses the name (app/config/other_names.h), else the nearest
// known key, else the keys of the section.
void find_unknown_keys(const ConfigNode& root, const std::vector<std::string>& known_keys, ErrorList& errors);

}  // namespace octavo

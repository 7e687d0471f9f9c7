// Keys of a config that there are not, and what was meant by them.
#pragma once

#include <string>
#include <vector>

#include "app/config/config_node.h"

namespace octavo {

// Throws InputError for the first key of `root` that is not among the full names `known_keys` (sections included), with
// the nearest known key, or those of its section where none is near.
void refuse_unknown_keys(const ConfigNode& root, const std::vector<std::string>& known_keys);

}  // namespace octavo

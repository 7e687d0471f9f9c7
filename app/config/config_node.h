// ConfigNode: the config as it was written, before any key is understood: a tree of maps, lists and scalars, each with
// the place it came from. A YAML file, command-line overrides and a checkpoint's JSON all become one of these, so that
// one reader (app/config/config.cpp) is strict about all of them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo {

struct ConfigNode {
  enum class Kind : uint8_t { kNull, kScalar, kList, kMap };

  Kind kind = Kind::kNull;
  std::string text;                  // Text of a scalar as written. For a null, "null" if it is written out.
  bool is_string = false;            // Whether a scalar is quoted or tagged, so that it is never a number or a boolean.
  std::vector<std::string> keys;     // Keys of a map, one per child, all different.
  std::vector<ConfigNode> children;  // Children of a map or list, in the order written.
  std::string where;                 // "config.yaml:12" or "command line", for messages.

  // Returns the child with that key, or null if there is none or this is not a map.
  const ConfigNode* find(std::string_view key) const;
  // Returns the node of a full name, "training.steps", or null if there is none.
  const ConfigNode* find_name(std::string_view name) const;
  // Returns the items of a list, or this node as the only item. A null has none.
  std::span<const ConfigNode> items() const;
  // Returns the words of a message for what was found: 'text', the string "text", a list, a map or nothing.
  std::string describe() const;
};

// Reads one YAML document whose root is a map. Throws InputError naming the file (and line and column where known): a
// missing, unreadable, empty or huge file, a syntax error, a key given twice, another root, more than one document,
// aliases that stand for too much. Takes about a second and some 300 MB at most.
ConfigNode node_from_file(const std::string& path);

// Returns the tree of a JSON value. `where` names it in messages.
ConfigNode node_from_json(const nlohmann::ordered_json& json, const std::string& where);

// Sets `section.key=value` (any depth, one key too), the value parsed as YAML. A map is merged into a map key by key,
// anything else replaces what was there. Throws InputError naming the override: no '=', an empty key, a value that is
// not YAML, a key below a scalar or a list.
void apply_override(ConfigNode& root, const std::string& override_text);

}  // namespace octavo

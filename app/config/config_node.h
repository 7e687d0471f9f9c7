// ConfigNode is a config as it was written, before any key is interpreted: a tree of maps, lists and scalars, each with
// its place of origin. YAML files, command-line overrides and a checkpoint's JSON are all converted to this tree, so
// that app/config/config.cpp checks all of them in the same way.
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
  // Text of a scalar as written. A null has the text "null" if it was written out, else an empty text.
  std::string text;
  bool is_merged = false;            // Whether a merge key (<<) merges this map into another one.
  bool is_string = false;            // Whether a scalar is quoted or tagged, and therefore never a number or a boolean.
  std::vector<std::string> keys;     // Keys of a map in the order of `children`, without dots and duplicates.
  std::vector<ConfigNode> children;  // Values of a map, or items of a list, in the order written.
  std::string where;                 // Place of origin for messages: "config.yaml:12" or "command line".

  bool operator==(const ConfigNode&) const = default;
  // Returns the value of a key of this map. Returns null if there is no such key, or if this node is not a map.
  const ConfigNode* find(std::string_view key) const;
  // Returns the node of a full name such as "training.steps". Returns null if there is none.
  const ConfigNode* find_name(std::string_view name) const;
  // Returns the items of a list. Any other node counts as a list of one item, and a null as an empty list.
  std::span<const ConfigNode> items() const;
  // Describes the value in a message: 'text', the string "text", a list, a map or nothing.
  std::string describe() const;
};

// Reads a file with one YAML document whose root is a map. Throws an InputError that names the file, and line and
// column if known. The file is refused if it is missing, unreadable, empty or too large, if it has a syntax error, a
// duplicate key, an unknown tag, another root or several documents, or if its aliases expand to too many nodes. A
// dotted key stands for nested maps, and the maps of a merge key (<<) are merged. Takes at most about a second and 300
// MB.
ConfigNode node_from_file(const std::string& path);

// Converts a JSON value. `where` names its origin in messages. A dotted key stands for nested maps.
ConfigNode node_from_json(const nlohmann::ordered_json& json, const std::string& where);

// Applies the override `section.key=value` to a tree. Names of any depth are accepted, and the value is parsed as YAML.
// A map is merged into an existing map key by key; any other value replaces the old one. Throws an InputError that
// names the override if it has no '=', an empty key, a value that is not valid YAML or ends with a comment, or a key
// inside of a scalar or a list.
void apply_override(ConfigNode& root, const std::string& override_text);

}  // namespace octavo

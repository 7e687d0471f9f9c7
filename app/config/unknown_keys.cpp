#include "app/config/unknown_keys.h"

#include <algorithm>
#include <string_view>

#include "core/error.h"
#include "core/nearest_name.h"

namespace octavo {

namespace {

using Kind = ConfigNode::Kind;

std::string_view section_of(std::string_view key) {
  const size_t dot = key.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : key.substr(0, dot);
}

std::string_view last_part(std::string_view key) { return key.substr(key.rfind('.') + 1); }

std::string join(std::string_view section, std::string_view key) {
  return section.empty() ? std::string(key) : fmt::format("{}.{}", section, key);
}

// How far a known key is from what was written. A key of the same section is taken before an equally near one of
// another, but a key in the wrong section finds the right one.
size_t key_distance(std::string_view written, std::string_view known) {
  const size_t moved = section_of(written) == section_of(known) ? 0 : 2;
  return moved + name_distance(last_part(written), last_part(known));
}

[[noreturn]] void refuse(const std::string& where, const std::string& key, const std::vector<std::string>& known_keys) {
  const auto nearest = std::min_element(
      known_keys.begin(), known_keys.end(),
      [&](const std::string& a, const std::string& b) { return key_distance(key, a) < key_distance(key, b); });
  std::string message = fmt::format("{}: unknown key {}", where, key);
  if (nearest == known_keys.end()) throw InputError(message);
  const std::string section(section_of(key));
  if (key_distance(key, *nearest) <= largest_slip(last_part(key)))
    throw InputError(fmt::format("{}; did you mean {}?", message, *nearest));
  std::string siblings;
  for (const std::string& known : known_keys) {
    if (section_of(known) == section) siblings += (siblings.empty() ? "" : ", ") + std::string(last_part(known));
  }
  throw InputError(fmt::format("{}; {} has the keys {}", message, section.empty() ? "a config" : section, siblings));
}

void refuse_unknown_below(const ConfigNode& node, const std::string& name, const std::vector<std::string>& known_keys) {
  for (size_t i = 0; i < node.children.size(); ++i) {
    const ConfigNode& child = node.children[i];
    // The items of a list share their keys' names, so that one known key stands for all of them.
    const std::string key = node.kind == Kind::kList ? name : join(name, node.keys[i]);
    if (node.kind == Kind::kMap && std::find(known_keys.begin(), known_keys.end(), key) == known_keys.end())
      refuse(child.where, key, known_keys);
    refuse_unknown_below(child, key, known_keys);
  }
}

}  // namespace

void refuse_unknown_keys(const ConfigNode& root, const std::vector<std::string>& known_keys) {
  refuse_unknown_below(root, "", known_keys);
}

}  // namespace octavo

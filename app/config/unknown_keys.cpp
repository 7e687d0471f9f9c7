#include "app/config/unknown_keys.h"

#include <algorithm>
#include <string_view>

#include "app/config/other_names.h"
#include "core/error.h"
#include "core/suggestions.h"

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

// Returns the edit distance between the last parts of two full names, plus 2 if the sections differ.
size_t key_distance(std::string_view written, std::string_view known) {
  const size_t moved = section_of(written) == section_of(known) ? 0 : 2;
  return moved + name_distance(last_part(written), last_part(known));
}

bool is_known(const std::string& key, const std::vector<std::string>& known_keys) {
  return std::find(known_keys.begin(), known_keys.end(), key) != known_keys.end();
}

bool is_section(const std::string& key, const std::vector<std::string>& known_keys) {
  return std::any_of(known_keys.begin(), known_keys.end(),
                     [&](const std::string& known) { return known.starts_with(key + "."); });
}

// Returns the known key that is similar enough to be the one that was meant, or null.
const std::string* near_key(const std::string& key, const std::vector<std::string>& known_keys) {
  const auto nearest = std::min_element(
      known_keys.begin(), known_keys.end(),
      [&](const std::string& a, const std::string& b) { return key_distance(key, a) < key_distance(key, b); });
  return key_distance(key, *nearest) <= largest_slip(last_part(key)) ? &*nearest : nullptr;
}

// Returns a suggestion for an unknown key.
std::string hint(const std::string& key, const std::vector<std::string>& known_keys) {
  if (const OtherName* other = find_other_name(key)) {
    return with_note(*other, fmt::format("Octavo's name for it is {}", other->key));
  }
  if (const std::string* near = near_key(key, known_keys)) return fmt::format("did you mean {}?", *near);
  const std::string section(section_of(key));
  std::string siblings;
  for (const std::string& known : known_keys) {
    if (section_of(known) == section) siblings += (siblings.empty() ? "" : ", ") + std::string(last_part(known));
  }
  if (siblings.empty()) return hint(section, known_keys);  // There is no such section.
  return fmt::format("{} has the keys {}", section.empty() ? "a config" : section, siblings);
}

// Returns whether a section that Octavo does not have contains keys for which a suggestion exists.
bool is_foreign_section(const ConfigNode& node, const std::string& name, const std::vector<std::string>& known_keys) {
  if (node.kind != Kind::kMap || find_other_name(name) != nullptr) return false;
  const std::string* near = near_key(name, known_keys);
  if (near != nullptr && section_of(*near) == section_of(name)) return false;
  return std::any_of(node.keys.begin(), node.keys.end(), [&](const std::string& key) {
    const auto is_same_last_part = [&](const std::string& known) { return last_part(known) == key; };
    return find_other_name(join(name, key)) != nullptr ||
           std::any_of(known_keys.begin(), known_keys.end(), is_same_last_part);
  });
}

// Returns whether a merge key merges the map `node`, or each map in it, into others, which then have its keys.
bool is_merged(const ConfigNode& node) {
  const auto is_source = [](const ConfigNode& one) { return one.is_merged; };
  return node.is_merged ||
         (!node.children.empty() && std::all_of(node.children.begin(), node.children.end(), is_source));
}

void find_below(const ConfigNode& node, const std::string& name, const std::vector<std::string>& known_keys,
                ErrorList& errors) {
  for (size_t i = 0; i < node.children.size(); ++i) {
    const ConfigNode& child = node.children[i];
    // All items of a list have the same keys, so one known key covers all of them.
    const std::string key = node.kind == Kind::kList ? name : join(name, node.keys[i]);
    const bool has_keys = is_section(key, known_keys);
    // The key's own rule checks the value.
    if (node.kind == Kind::kMap && !has_keys && is_known(key, known_keys)) continue;
    if (node.kind == Kind::kMap && !has_keys && is_merged(child)) continue;
    if (node.kind == Kind::kMap && !has_keys && !is_foreign_section(child, key, known_keys)) {
      errors.add(fmt::format("{}: unknown key {}; {}", child.where, key, hint(key, known_keys)));
    } else {
      find_below(child, key, known_keys, errors);
    }
  }
}

}  // namespace

void find_unknown_keys(const ConfigNode& root, const std::vector<std::string>& known_keys, ErrorList& errors) {
  find_below(root, "", known_keys, errors);
}

}  // namespace octavo

// Reports the keys of a config that Octavo does not have, and suggests the keys that were probably meant. Errors for
// unknown options use the table of other programs' names too.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "app/config/config_node.h"
#include "app/config/error_list.h"

namespace octavo {

// A name that torchtitan, Megatron-LM or Hugging Face's Trainer uses for a setting, and the key that corresponds to it.
struct OtherName {
  std::string name;  // Name in the other program: the last part of a key, or "section.key".
  const char* key;   // Octavo's key, or empty if there is none.
  const char* note;  // Difference between the two settings, or empty if they mean the same.
};

// Returns the table, sorted by Octavo's keys.
std::span<const OtherName> other_names();

// Returns the row for an unknown key, or null. Hyphens count as underscores. A row that names a section takes
// precedence over a row without a section.
const OtherName* find_other_name(std::string_view written);

// Returns `text`, which names the key of the row, followed by the note. If Octavo has no such key, returns the note.
std::string with_note(const OtherName& row, const std::string& text);

// Adds an error to `errors` for each key of `root` that is not in `known_keys`, the full names of all keys and
// sections. The error names Octavo's key if another program uses the unknown name (other_names). Otherwise it names the
// most similar key, or else lists the keys of the section.
void find_unknown_keys(const ConfigNode& root, const std::vector<std::string>& known_keys, ErrorList& errors);

}  // namespace octavo

// The names that torchtitan, Megatron-LM and Hugging Face's Trainer use for settings, and the keys of Octavo that
// correspond to them. Errors for unknown keys and options use this table.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace octavo {

struct OtherName {
  const char* name;  // Name in the other program: the last part of a key, or "section.key".
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

}  // namespace octavo

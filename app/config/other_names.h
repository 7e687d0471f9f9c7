// Names that torchtitan, Megatron-LM and Hugging Face's Trainer give to settings, and the keys of Octavo for them.
#pragma once

#include <span>
#include <string_view>

namespace octavo {

struct OtherName {
  const char* name;  // as the other program writes it: the last part of a key, or "section.key"
  const char* key;   // Octavo's key; empty if there is none
  const char* note;  // what else a user has to know; empty if the names mean the same
};

// The table, sorted by Octavo's keys.
std::span<const OtherName> other_names();

// Returns the row for a key that somebody wrote, or null. Hyphens count as underscores. A row with a section is
// preferred to one without.
const OtherName* find_other_name(std::string_view written);

}  // namespace octavo

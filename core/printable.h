// Makes text of unknown origin (a path, a name in a file, a library's message) safe to print on one line.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace octavo {

// Maximum number of bytes of an error sentence.
inline constexpr size_t kMaxSentenceBytes = 600;

// Returns `text` with control characters and invalid UTF-8 escaped as \n, \t, \x1b or \u202e. Control characters
// include those of Unicode that change the direction of text. If the result exceeds `max_bytes`, its middle is removed.
// An error message names the file or key at its beginning and the expected value at its end, and both stay.
std::string printable(std::string_view text, size_t max_bytes = kMaxSentenceBytes);

// Escapes text of many lines, such as a model's output. Newlines and tabs stay, and nothing is removed.
std::string printable_lines(std::string_view text);

// Returns whether the whole text is valid UTF-8. Control characters are allowed.
bool is_utf8(std::string_view text);

// Returns the number of bytes at the end of `text` that begin an incomplete UTF-8 character, at most 3.
size_t incomplete_character_bytes(std::string_view text);

}  // namespace octavo

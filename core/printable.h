// Text of unknown origin (a path, a name in a file, a library's message) as it may stand in one line of a terminal or
// log.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace octavo {

// The most bytes of a sentence that says what went wrong.
inline constexpr size_t kMaxSentenceBytes = 600;

// `text` with control characters (those of Unicode that change the direction of text included) and bytes that are no
// UTF-8 as \n, \t, \x1b or \u202e. What is then longer than `max_bytes`
// loses its middle, so that both the name at its beginning and what was expected at its end are kept.
std::string printable(std::string_view text, size_t max_bytes = kMaxSentenceBytes);

// Text of many lines, as a model writes it: the same, but that newlines and tabs stay, and all of it does.
std::string printable_lines(std::string_view text);

// Whether all of it is UTF-8; control characters may be.
bool is_utf8(std::string_view text);

// How many bytes at the end of `text` are the beginning of a UTF-8 character that is not whole; at most 3.
size_t incomplete_character_bytes(std::string_view text);

}  // namespace octavo

#include "core/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace octavo {
namespace {

constexpr std::string_view kGap = " ... ";

bool continues(char byte) { return (static_cast<unsigned char>(byte) & 0xC0u) == 0x80u; }

struct Character {
  size_t bytes = 0;  // Length in bytes. 0 if the bytes are invalid UTF-8 (Unicode 15, table 3-7).
  uint32_t code = 0;

  // Returns whether this is a control character, or an invisible character that changes the text's direction or breaks
  // its lines.
  bool is_control() const {
    return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x61C || code == 0x200E || code == 0x200F ||
           (code >= 0x2028 && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069) || code == 0xFEFF;
  }
};

// Returns the character that `text` begins with.
Character first_character(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return {1, first};
  const size_t size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < size) return {};
  uint32_t code = first & (0x7Fu >> size);
  for (size_t i = 1; i < size; ++i) {
    if (!continues(text[i])) return {};
    code = code << 6 | (static_cast<unsigned char>(text[i]) & 0x3Fu);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
  return code >= kLeast[size] && code <= 0x10FFFF && !is_surrogate ? Character{size, code} : Character{};
}

std::string escaped(std::string_view text, std::string_view kept = {}) {
  std::string out;
  while (!text.empty()) {
    const Character character = first_character(text);
    size_t size = character.bytes;
    if (size > 0 && (!character.is_control() || kept.find(text[0]) != std::string_view::npos)) {
      out += text.substr(0, size);
    } else if (size > 1) {
      out += fmt::format("\\u{:04x}", character.code);
    } else {
      size = 1;
      const auto byte = static_cast<unsigned char>(text[0]);
      if (byte == '\n' || byte == '\t' || byte == '\r')
        out += byte == '\n' ? "\\n" : byte == '\t' ? "\\t" : "\\r";
      else
        out += fmt::format("\\x{:02x}", byte);
    }
    text.remove_prefix(size);
  }
  return out;
}

}  // namespace

std::string printable_lines(std::string_view text) { return escaped(text, "\n\t"); }

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t bytes = first_character(text).bytes;
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

size_t incomplete_character_bytes(std::string_view text) {
  for (size_t bytes = 1; bytes <= std::min<size_t>(text.size(), 3); ++bytes) {
    const auto byte = static_cast<unsigned char>(text[text.size() - bytes]);
    if (continues(static_cast<char>(byte))) continue;
    const size_t whole = byte >= 0xF0 && byte <= 0xF4 ? 4 : byte >= 0xE0 && byte < 0xF0 ? 3 : byte >= 0xC2 ? 2 : 1;
    return byte <= 0xF4 && bytes < whole ? bytes : 0;
  }
  return 0;
}

std::string printable(std::string_view text, size_t max_bytes) {
  // Escaping only lengthens text, so parts further than max_bytes from both ends are never shown.
  const bool is_huge = text.size() > 2 * max_bytes;
  std::string head = escaped(is_huge ? text.substr(0, max_bytes) : text);
  std::string tail = is_huge ? escaped(text.substr(text.size() - max_bytes)) : head;
  if (!is_huge && head.size() <= max_bytes) return head;
  const size_t kept = max_bytes > kGap.size() ? (max_bytes - kGap.size()) / 2 : 0;
  size_t end = kept, begin = tail.size() - kept;
  while (end > 0 && continues(head[end])) --end;
  while (begin < tail.size() && continues(tail[begin])) ++begin;
  return head.substr(0, end).append(kGap).append(tail.substr(begin));
}

}  // namespace octavo

#include "core/printable.h"

#include <fmt/format.h>

#include <cstdint>
#include <iterator>

namespace octavo {
namespace {

constexpr std::string_view kGap = " ... ";

bool continues(char byte) { return (static_cast<unsigned char>(byte) & 0xC0u) == 0x80u; }

// Bytes of the character that `text` begins with, 0 when it is none of UTF-8 (Unicode 15, table 3-7) or a control
// character.
size_t printable_character(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return first >= 0x20 && first != 0x7F ? 1 : 0;
  const size_t size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < size) return 0;
  uint32_t code = first & (0x7Fu >> size);
  for (size_t i = 1; i < size; ++i) {
    if (!continues(text[i])) return 0;
    code = code << 6 | (static_cast<unsigned char>(text[i]) & 0x3Fu);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0xA0, 0x800, 0x10000};  // below 0xA0: control characters
  const bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
  return code >= kLeast[size] && code <= 0x10FFFF && !is_surrogate ? size : 0;
}

std::string escaped(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    size_t size = printable_character(text);
    if (size > 0) {
      out += text.substr(0, size);
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

std::string printable(std::string_view text, size_t max_bytes) {
  // Escaping only lengthens, so what lies beyond max_bytes from both ends cannot be seen.
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

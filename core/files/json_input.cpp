#include "core/files/json_input.h"

#include <utility>

#include "core/error.h"
#include "core/files/input_file.h"
#include "core/printable.h"

namespace octavo {
namespace {

constexpr size_t kMaxReasonBytes = 160;

// Returns whether lists and objects are nested more than kMaxJsonDepth deep, as far as this can be determined before
// the first syntax error.
bool is_too_deep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) return true;
    } else if ((c == ']' || c == '}') && --depth < 0) {
      return false;  // This is the syntax error at which the parser stops.
    }
  }
  return false;
}

template <typename Json>
Json parse(std::string_view text, const std::string& where, int64_t max_bytes = std::numeric_limits<int64_t>::max(),
           const typename Json::parser_callback_t& visit = nullptr) {
  CHECK_INPUT(!is_too_deep(text), "{}: has lists and objects nested more than {} deep", where, int{kMaxJsonDepth});
  CHECK_INPUT(std::cmp_less_equal(text.size(), max_bytes), "{}: has {} bytes, expected at most {}", where, text.size(),
              max_bytes);
  try {
    return Json::parse(text, visit);
  } catch (const nlohmann::json::exception& error) {
    throw InputError(fmt::format("{}: is not JSON: {}", where, reason_of(error)));
  }
}

// JSON is ASCII outside strings, so a control character here is inside a string.
template <typename Json>
std::string dump_printable(const Json& json, int indent) {
  const std::string text = json.dump(indent, ' ', false, Json::error_handler_t::replace);
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    if (text[i] == '\x7F') {
      out += "\\u007f";
    } else if (text[i] == '\xC2' && next >= 0x80 && next < 0xA0) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(next));
      ++i;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& where,
                          const nlohmann::json::parser_callback_t& visit) {
  return parse<nlohmann::json>(text, where, std::numeric_limits<int64_t>::max(), visit);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& where) {
  return parse<nlohmann::ordered_json>(text, where, kMaxOrderedJsonBytes);
}

std::string reason_of(const nlohmann::json::exception& error) {
  // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
  const std::string_view text = error.what();
  const size_t label = text.starts_with('[') ? text.find("] ") : std::string_view::npos;
  return printable(label == std::string_view::npos ? text : text.substr(label + 2), kMaxReasonBytes);
}

std::string printable_json(const nlohmann::json& json, int indent) { return dump_printable(json, indent); }
std::string printable_json(const nlohmann::ordered_json& json, int indent) { return dump_printable(json, indent); }

nlohmann::json read_json_file(const std::string& path) { return parse_json(read_input_file(path), path); }

int64_t as_integer(const nlohmann::json& value, const std::string& name, int64_t least, int64_t most) {
  // The type decides how the library stores the value. A value that does not fit into int64 must not wrap.
  const bool fits = value.is_number_unsigned()
                        ? value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())
                        : value.is_number_integer();
  const int64_t integer = fits ? value.get<int64_t>() : 0;
  CHECK_INPUT(fits && integer >= least && integer <= most, "{} is {}, expected an integer from {} to {}", name,
              value.dump(), least, most);
  return integer;
}

int64_t integer_at(const nlohmann::json& json, const char* key, const std::string& where, int64_t least, int64_t most) {
  CHECK_INPUT(json.is_object() && json.contains(key), "{}: has no {}", where, key);
  return as_integer(json.at(key), fmt::format("{}: {}", where, key), least, most);
}

}  // namespace octavo

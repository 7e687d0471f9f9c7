// Reads untrusted JSON safely: in time and memory proportional to the text, without recursion, and without converting a
// number to a type that it does not fit. Prints JSON without control characters.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace octavo {

// Maximum nesting of lists and objects. Every format that Octavo reads stays far below.
inline constexpr int kMaxJsonDepth = 64;
// Maximum size of text that is parsed into objects with ordered keys, because nlohmann compares each key with all
// earlier ones.
inline constexpr int64_t kMaxOrderedJsonBytes = int64_t{64} << 10;

// Parses JSON. Throws an InputError that names `where` if the text is not JSON (with the place), is nested more than
// kMaxJsonDepth deep, or, for the ordered version, is longer than kMaxOrderedJsonBytes. `visit` is called for each
// completed value and drops it by returning false, so that large text can be processed part by part.
nlohmann::json parse_json(std::string_view text, const std::string& where,
                          const nlohmann::json::parser_callback_t& visit = nullptr);
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& where);

// Parses a file. Throws an InputError also if it cannot be read.
nlohmann::json read_json_file(const std::string& path);

// Returns the message of a library exception without its label: "type must be number, but is string".
std::string reason_of(const nlohmann::json::exception& error);

// Returns `json` as text for a terminal or log, with `indent` as in dump(). DEL and U+0080 to U+009F are escaped too,
// and invalid UTF-8 becomes U+FFFD.
std::string printable_json(const nlohmann::json& json, int indent = -1);
std::string printable_json(const nlohmann::ordered_json& json, int indent = -1);

// Returns a value as an integer. Throws an InputError that begins with `name` if it is not an integer from `least` to
// `most`.
int64_t as_integer(const nlohmann::json& value, const std::string& name, int64_t least = 0,
                   int64_t most = std::numeric_limits<int64_t>::max());
// Returns json[key] as an integer. Throws an InputError also if the key is missing. `where` names `json` in messages.
int64_t integer_at(const nlohmann::json& json, const char* key, const std::string& where, int64_t least = 0,
                   int64_t most = std::numeric_limits<int64_t>::max());

// Returns the value at a place such as "/config/data/tokenizer". Returns nothing if there is none, or one of another
// type. `Value` is std::string, an integer or a floating-point number.
template <typename Value, typename Json>
std::optional<Value> find_value(const Json& json, const std::string& place) {
  const typename Json::json_pointer pointer(place);
  if (!json.contains(pointer)) return std::nullopt;
  const Json& found = json.at(pointer);
  const bool has_type = std::is_same_v<Value, std::string> ? found.is_string()
                        : std::is_integral_v<Value>        ? found.is_number_integer()
                                                           : found.is_number();
  return has_type ? std::optional(found.template get<Value>()) : std::nullopt;
}

}  // namespace octavo

// JSON from outside (files and lines that users or other programs wrote), read safely: in time and memory proportional
// to the text, without recursion, and no number converted to a type that it does not fit; and printed so that it does
// nothing to a terminal.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace octavo {

// Lists and objects within one another; every format that Octavo reads stays far below.
inline constexpr int kMaxJsonDepth = 64;
// Of text whose objects keep the order of their keys: nlohmann compares each key with all before it.
inline constexpr int64_t kMaxOrderedJsonBytes = int64_t{64} << 10;

// InputError naming `where`: not JSON (with the place), or nested more than kMaxJsonDepth deep. A deeper tree would be
// of no use: nlohmann copies, compares and prints trees by recursion. Text
// of more than kMaxOrderedJsonBytes is refused by the ordered one.
// `visit` sees what is parsed as it is completed, and leaves out what it answers false for: so text whose tree would be
// too large can be taken part by part.
nlohmann::json parse_json(std::string_view text, const std::string& where,
                          const nlohmann::json::parser_callback_t& visit = nullptr);
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& where);

// The same of a file; also InputError when it cannot be read.
nlohmann::json read_json_file(const std::string& path);

// What an exception of the library says, without its label: "type must be number, but is string".
std::string reason_of(const nlohmann::json::exception& error);

// `json` as text for a terminal or log, `indent` as of dump(): control characters beyond those that JSON itself escapes
// are escaped too (DEL and U+0080 to U+009F), and what is no UTF-8 becomes U+FFFD.
std::string printable_json(const nlohmann::json& json, int indent = -1);
std::string printable_json(const nlohmann::ordered_json& json, int indent = -1);

// A value as an integer; InputError beginning with `name` when it is none or not from `least` to `most`.
int64_t as_integer(const nlohmann::json& value, const std::string& name, int64_t least = 0,
                   int64_t most = std::numeric_limits<int64_t>::max());
// The same of json[key], which must be there; `where` names the object.
int64_t integer_at(const nlohmann::json& json, const char* key, const std::string& where, int64_t least = 0,
                   int64_t most = std::numeric_limits<int64_t>::max());

}  // namespace octavo

// Rules for the values of config keys. Each rule is a small struct for one kind of value with three functions:
//   expected()          returns the text after "expected ..." in errors, which the documentation shows too
//   read(node, value)   sets `value` and returns true, or returns false and keeps `value` if the node is not such a
//                       value. An empty node is refused unless the rule says otherwise.
//   write(value)        returns JSON from which read() restores the same value
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "app/config/config_node.h"
#include "data/config.h"
#include "kernels/attention/rope.h"

namespace octavo {

// Upper limit of sample numbers, larger than the number of samples of any run.
inline constexpr int64_t kMaxSample = int64_t{1} << 60;

// Throws the InputError "PLACE: section.key is FOUND, expected WHAT".
[[noreturn]] void refuse_value(const ConfigNode& found, std::string_view key, std::string_view expected);
// Throws the error of refuse_value for a value that must be one of `choices`. Adds the most similar choice, if any.
[[noreturn]] void refuse_choice(const ConfigNode& found, std::string_view key, std::string_view expected,
                                std::span<const std::string> choices);

// Formats a value as one line of YAML that load_config can read back unchanged.
std::string yaml_text(const nlohmann::ordered_json& value);

// Base of rules that write their values to JSON without a conversion.
struct PlainValue {
  template <typename T>
  nlohmann::ordered_json write(const T& value) const {
    return value;
  }
};

// An integer in decimal digits, with an optional exponent such as 1e3. Refuses 3.0, 1_000, 0x10, 007 and quoted
// numbers.
struct Integers : PlainValue {
  int64_t low;
  int64_t high;

  constexpr Integers(int64_t lowest, int64_t highest) : low(lowest), high(highest) {}
  std::string expected() const;
  bool read(const ConfigNode& node, int64_t& value) const;
};

// A number of ranks, or -1 for all ranks that the other axes of the mesh leave.
struct RanksOrRest : Integers {
  using Integers::Integers;
  std::string expected() const;
  bool read(const ConfigNode& node, int64_t& value) const;
};

// An integer that may be absent. An empty node means that there is none.
template <typename Integer>
struct OptionalInteger {
  Integers range;

  std::string expected() const { return range.expected(); }
  bool read(const ConfigNode& node, std::optional<Integer>& value) const;
  nlohmann::ordered_json write(const std::optional<Integer>& value) const;
};
inline constexpr OptionalInteger<int32_t> kOptionalToken{{0, std::numeric_limits<int32_t>::max()}};

struct Seed : PlainValue {
  std::string expected() const;
  bool read(const ConfigNode& node, uint64_t& value) const;
};

// A finite floating-point number; integers are accepted too. The bounds are checked after rounding to float32, because
// the value is used in float32.
struct Numbers : PlainValue {
  double low;
  double high;
  bool includes_low;
  bool includes_high;
  const char* description;

  constexpr Numbers(double lowest, double highest, bool with_low, bool with_high, const char* text)
      : low(lowest), high(highest), includes_low(with_low), includes_high(with_high), description(text) {}
  std::string expected() const { return description; }
  bool read(const ConfigNode& node, double& value) const;
};

inline constexpr double kLargestNumber = std::numeric_limits<float>::max();
inline constexpr Numbers kPositive{0, kLargestNumber, false, true, "a number above 0 as float32"};
inline constexpr Numbers kUnitInterval{0, 1, true, true, "a number from 0 to 1"};
inline constexpr Numbers kBelowOne{0, 1, true, false, "a number of at least 0 and below 1 as float32"};
inline constexpr Numbers kAtLeastOne{1, kLargestNumber, true, true, "a number of at least 1 as float32"};

// A number that the base rule accepts, or 0 to disable the feature. A number that is not 0 but rounds to 0 is refused.
struct ZeroOr : Numbers {
  constexpr explicit ZeroOr(const Numbers& others) : Numbers(others) {}
  std::string expected() const { return "0 or " + Numbers::expected(); }
  bool read(const ConfigNode& node, double& value) const;
};
inline constexpr ZeroOr kNonNegative{kPositive};
inline constexpr ZeroOr kSecondsOrNever{kAtLeastOne};
inline constexpr ZeroOr kMinutesOrNever{{0.01F, kLargestNumber, true, true, "a number of at least 0.01 as float32"}};

struct Flag : PlainValue {
  std::string expected() const { return "true or false"; }
  bool read(const ConfigNode& node, bool& value) const;
};

struct Text : PlainValue {
  std::string expected() const { return "a non-empty string"; }
  bool read(const ConfigNode& node, std::string& value) const;
};

// A path. A leading ~ is replaced by the home directory, and ${VARIABLE} by the environment variable. Throws an
// InputError if the variable is not set.
struct PathText : Text {
  std::string expected() const { return "a path"; }
  bool read(const ConfigNode& node, std::string& value) const;
  // Replaces ~ and ${VARIABLE} in `path`, the text of `node`. Returns false if a ${ has no } or no name.
  static bool expand(const ConfigNode& node, std::string& path);
};

// A text that may be absent. An empty node or `none` means that there is none.
struct OptionalText : Text {
  bool read(const ConfigNode& node, std::string& value) const;
  nlohmann::ordered_json write(const std::string& value) const;
};

template <typename Enum>
struct Choice {
  const char* name;
  Enum value;
};

template <typename Choices, typename Enum>
const char* name_of(const Choices& choices, Enum value) {
  for (const Choice<Enum>& one : choices) {
    if (one.value == value) return one.name;
  }
  return "?";
}

template <typename Enum>
struct OneOf {
  std::span<const Choice<Enum>> choices;

  std::string expected() const { return fmt::format("one of {}", fmt::join(names(), ", ")); }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const Choice<Enum>& one : choices) names.emplace_back(one.name);
    return names;
  }
  bool read(const ConfigNode& node, Enum& value) const {
    for (const Choice<Enum>& one : choices) {
      if (node.kind != ConfigNode::Kind::kScalar || node.text != one.name) continue;
      value = one.value;
      return true;
    }
    return false;
  }
  nlohmann::ordered_json write(Enum value) const { return name_of(choices, value); }
};

template <typename Enum, size_t kCount>
OneOf(const Choice<Enum> (&)[kCount]) -> OneOf<Enum>;
template <typename Enum, size_t kCount>
OneOf(const std::array<Choice<Enum>, kCount>&) -> OneOf<Enum>;

// A list of choices, or a single choice. An empty node means an empty list. An unknown name is an InputError for the
// key `key` that suggests the most similar choice.
template <typename Enum>
struct SomeOf {
  OneOf<Enum> each;
  const char* key;

  std::string expected() const { return "a list of " + each.expected().substr(std::string_view("one of ").size()); }
  bool read(const ConfigNode& node, std::vector<Enum>& values) const {
    values.clear();
    for (const ConfigNode& item : node.items()) {
      Enum value{};
      if (!each.read(item, value)) refuse_choice(item, key, expected(), each.names());
      if (std::ranges::find(values, value) == values.end()) values.push_back(value);
    }
    return true;
  }
  nlohmann::ordered_json write(const std::vector<Enum>& values) const {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const Enum value : values) list.push_back(each.write(value));
    return list;
  }
};

// A path that may be absent. An empty node or `none` means that there is none.
struct OptionalPath : OptionalText {
  std::string expected() const { return "a path"; }
  bool read(const ConfigNode& node, std::string& value) const;
};

// A list of datasets, or a single dataset. Each dataset is a map, or only its path. An empty node means an empty list.
// A wrong item is an InputError for the key `key`.
struct Datasets {
  const char* key;

  std::string expected() const { return "a list of {path: PREFIX, weight: NUMBER}, or of paths"; }
  bool read(const ConfigNode& node, std::vector<DatasetSource>& sources) const;
  nlohmann::ordered_json write(const std::vector<DatasetSource>& sources) const;
};

// A list of integers, or a single integer. An empty node means an empty list. A wrong item is an InputError for the key
// `key`.
struct IntegerList : PlainValue {
  const char* key;
  Integers each;

  constexpr IntegerList(const char* its_key, const Integers& integers) : key(its_key), each(integers) {}
  std::string expected() const { return "a list, each item " + each.expected(); }
  bool read(const ConfigNode& node, std::vector<int64_t>& values) const;
};

// A path or a list of paths.
struct Paths {
  std::string expected() const { return "a path, or a list of paths"; }
  bool read(const ConfigNode& node, std::vector<std::string>& value) const;
  nlohmann::ordered_json write(const std::vector<std::string>& value) const;
};

// A list of ranges [A, B] with A < B. A wrong item is an InputError for the key `key`.
struct SampleRanges {
  const char* key;

  std::string expected() const { return "a list of ranges [A, B] of global samples, 0 <= A < B"; }
  bool read(const ConfigNode& node, std::vector<SampleRange>& ranges) const;
  nlohmann::ordered_json write(const std::vector<SampleRange>& ranges) const;
};

// A list of {batch_size, steps} maps, or a single map. An empty node means an empty list. A wrong item is an InputError
// for the key `key`.
struct BatchPhases {
  const char* key;
  Integers batch_size;
  Integers steps;

  std::string expected() const { return "a list of {batch_size: SEQUENCES, steps: STEPS}"; }
  bool read(const ConfigNode& node, std::vector<BatchPhase>& phases) const;
  nlohmann::ordered_json write(const std::vector<BatchPhase>& phases) const;
};

// A section that may be absent. An empty node or `none` means that there is none. The keys of the section have their
// own rules.
struct OptionalSection {
  std::string expected() const { return "a section of keys"; }
  bool read(const ConfigNode& node, std::optional<RopeScaling>& value) const;
  nlohmann::ordered_json write(const std::optional<RopeScaling>& value) const;
};

}  // namespace octavo

// Typed, strict access to a ConfigNode. Each read names a key, where its value goes and what is allowed; the value
// stays as it is (the default) when the key is absent, and every read returns whether there was one. A key without a
// value is an error, but for sections and lists, which may be empty, and what says that it may. The keys
// asked for are remembered: whatever else is in the tree is unknown, and refuse_unknown_keys() names the first of it.
//
// All errors are InputErrors "PLACE: section.key is FOUND, expected WHAT". Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/config/config_node.h"

namespace octavo {

// What a floating-point key may be. `description` completes "expected ...".
struct NumberRange {
  double low;
  double high;
  bool includes_low;
  bool includes_high;
  const char* description;

  bool contains(double value) const {
    return (includes_low ? value >= low : value > low) && (includes_high ? value <= high : value < high);
  }
};

inline constexpr double kLargestNumber = 1e300;
inline constexpr NumberRange kPositive{0, kLargestNumber, false, true, "a number above 0"};
inline constexpr NumberRange kNonNegative{0, kLargestNumber, true, true, "a number of at least 0"};
inline constexpr NumberRange kUnitInterval{0, 1, true, true, "a number from 0 to 1"};
inline constexpr NumberRange kBelowOne{0, 1, true, false, "a number of at least 0 and below 1"};

template <typename Enum>
struct Choice {
  const char* name;
  Enum value;
};

class SectionReader {
 public:
  // `node` is the section (null when absent), `name` its full key ("" for the root). Borrows `node` and `known_keys`.
  SectionReader(const ConfigNode* node, std::string name, std::vector<std::string>& known_keys);

  // Integers are plain decimal digits: 3e2, 1_000, 0x10, 007 and quoted numbers are refused.
  bool integer(const char* key, int64_t& value, int64_t low, int64_t high);
  // May be given without a value, which says that there is none.
  bool integer(const char* key, std::optional<int32_t>& value, int32_t low);
  bool seed(const char* key, uint64_t& value);
  // Floating point, integers included; never infinite.
  bool number(const char* key, double& value, const NumberRange& range);
  // Only `true` and `false`.
  bool boolean(const char* key, bool& value);
  // Any scalar but an empty string.
  bool text(const char* key, std::string& value);
  // The same, but it may be given without a value.
  bool optional_text(const char* key, std::string& value);

  template <typename Enum, size_t kCount>
  bool choice(const char* key, Enum& value, const Choice<Enum> (&choices)[kCount]) {
    const ConfigNode* found = written(key);
    if (found == nullptr) return false;
    std::string allowed;
    for (const Choice<Enum>& one : choices) {
      if (found->kind == ConfigNode::Kind::kScalar && found->text == one.name) {
        value = one.value;
        return true;
      }
      allowed += std::string(allowed.empty() ? "" : ", ") + one.name;
    }
    wrong(key, *found, "one of " + allowed);
  }

  // The sub-section of that key; throws unless it is a map (or absent or empty).
  SectionReader section(const char* key);
  // The items of a list, each to be read as a section; a single map or scalar is a list of one.
  std::vector<const ConfigNode*> items(const char* key);
  // Whether the key is written at all, be it empty.
  bool is_written(const char* key) const;
  // The key's node; null when absent.
  const ConfigNode* written(const char* key);
  // The key's node; null when absent or empty.
  const ConfigNode* child(const char* key);

  std::string full_key(const std::string& key) const;
  // All keys asked for so far by every reader of this tree.
  std::vector<std::string>& known_keys() { return known_keys_; }
  [[noreturn]] void wrong(const char* key, const ConfigNode& found, const std::string& expected) const;

 private:
  const ConfigNode* node_;
  std::string name_;
  std::vector<std::string>& known_keys_;
};

// The number `node` is, or nothing: for list items.
std::optional<double> parse_number(const ConfigNode& node);

// Throws InputError for the first key of `root` that no reader asked for, with the nearest known key.
void refuse_unknown_keys(const ConfigNode& root, const std::vector<std::string>& known_keys);

}  // namespace octavo

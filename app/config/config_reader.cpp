#include "app/config/config_reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <string_view>

#include "core/error.h"

namespace octavo {

namespace {

using Kind = ConfigNode::Kind;

template <typename Integer>
std::optional<Integer> parse_integer(const ConfigNode& node) {
  if (node.kind != Kind::kScalar || node.is_string) return std::nullopt;
  const std::string_view text = node.text;
  const std::string_view digits = text.starts_with('-') ? text.substr(1) : text;
  // YAML 1.1 reads 010 as eight and 1.2 as ten, so neither is guessed.
  if (digits.size() > 1 && digits.front() == '0') return std::nullopt;
  Integer value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Levenshtein's distance: insertions, deletions and substitutions that turn one word into the other.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

// The edit distance, but a key cut short (warmup of warmup_steps, batch_size of global_batch_size) is near the whole.
size_t name_distance(std::string_view written, std::string_view known) {
  constexpr size_t kTellingLength = 4, kCutShort = 2;
  const size_t distance = edit_distance(written, known);
  const bool is_part = written.size() >= kTellingLength && known.find(written) != std::string_view::npos;
  return is_part ? std::min(distance, kCutShort) : distance;
}

std::string_view section_of(std::string_view key) {
  const size_t dot = key.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : key.substr(0, dot);
}

std::string_view last_part(std::string_view key) { return key.substr(key.rfind('.') + 1); }

std::string join(std::string_view section, std::string_view key) {
  return section.empty() ? std::string(key) : fmt::format("{}.{}", section, key);
}

// How far a known key is from what was written. A key of the same section is taken before an equally near one of
// another, but a key in the wrong section finds the right one.
size_t key_distance(std::string_view written, std::string_view known) {
  const size_t moved = section_of(written) == section_of(known) ? 0 : 2;
  return moved + name_distance(last_part(written), last_part(known));
}

[[noreturn]] void refuse(const std::string& where, const std::string& key, const std::vector<std::string>& known_keys) {
  const auto nearest = std::min_element(
      known_keys.begin(), known_keys.end(),
      [&](const std::string& a, const std::string& b) { return key_distance(key, a) < key_distance(key, b); });
  std::string message = fmt::format("{}: unknown key {}", where, key);
  if (nearest == known_keys.end()) throw InputError(message);
  const std::string section(section_of(key));
  if (key_distance(key, *nearest) <= std::max<size_t>(2, last_part(key).size() / 2))
    throw InputError(fmt::format("{}; did you mean {}?", message, *nearest));
  std::string siblings;
  for (const std::string& known : known_keys) {
    if (section_of(known) == section) siblings += (siblings.empty() ? "" : ", ") + std::string(last_part(known));
  }
  throw InputError(fmt::format("{}; the nearest known key is {}, and {} has the keys {}", message, *nearest,
                               section.empty() ? "a config" : section, siblings));
}

void refuse_unknown_below(const ConfigNode& node, const std::string& name, const std::vector<std::string>& known_keys) {
  for (size_t i = 0; i < node.children.size(); ++i) {
    const ConfigNode& child = node.children[i];
    // The items of a list share their keys' names, so that one known key stands for all of them.
    const std::string key = node.kind == Kind::kList ? name : join(name, node.keys[i]);
    if (node.kind == Kind::kMap && std::find(known_keys.begin(), known_keys.end(), key) == known_keys.end())
      refuse(child.where, key, known_keys);
    refuse_unknown_below(child, key, known_keys);
  }
}

}  // namespace

std::optional<double> parse_number(const ConfigNode& node) {
  if (node.kind != Kind::kScalar || node.is_string) return std::nullopt;
  double value = 0;
  const char* end_of_text = node.text.data() + node.text.size();
  const auto [end, error] = std::from_chars(node.text.data(), end_of_text, value);
  if (error != std::errc() || end != end_of_text || !std::isfinite(value)) return std::nullopt;
  return value;
}

SectionReader::SectionReader(const ConfigNode* node, std::string name, std::vector<std::string>& known_keys)
    : node_(node), name_(std::move(name)), known_keys_(known_keys) {}

std::string SectionReader::full_key(const std::string& key) const { return join(name_, key); }

void SectionReader::wrong(const char* key, const ConfigNode& found, const std::string& expected) const {
  throw InputError(fmt::format("{}: {} is {}, expected {}", found.where, full_key(key), found.describe(), expected));
}

bool SectionReader::is_written(const char* key) const { return node_ != nullptr && node_->find(key) != nullptr; }

const ConfigNode* SectionReader::written(const char* key) {
  std::string full = full_key(key);
  if (std::find(known_keys_.begin(), known_keys_.end(), full) == known_keys_.end())
    known_keys_.push_back(std::move(full));
  return node_ == nullptr ? nullptr : node_->find(key);
}

const ConfigNode* SectionReader::child(const char* key) {
  const ConfigNode* found = written(key);
  return found == nullptr || found->kind == Kind::kNull ? nullptr : found;
}

bool SectionReader::integer(const char* key, int64_t& value, int64_t low, int64_t high) {
  const ConfigNode* found = written(key);
  if (found == nullptr) return false;
  const std::optional<int64_t> parsed = parse_integer<int64_t>(*found);
  if (!parsed || *parsed < low || *parsed > high)
    wrong(key, *found, fmt::format("an integer from {} to {}", low, high));
  value = *parsed;
  return true;
}

bool SectionReader::integer(const char* key, std::optional<int32_t>& value, int32_t low) {
  if (child(key) == nullptr) return false;
  int64_t wide = 0;
  if (!integer(key, wide, low, std::numeric_limits<int32_t>::max())) return false;
  value = static_cast<int32_t>(wide);
  return true;
}

bool SectionReader::seed(const char* key, uint64_t& value) {
  const ConfigNode* found = written(key);
  if (found == nullptr) return false;
  const std::optional<uint64_t> parsed = parse_integer<uint64_t>(*found);
  if (!parsed) wrong(key, *found, fmt::format("an integer from 0 to {}", std::numeric_limits<uint64_t>::max()));
  value = *parsed;
  return true;
}

bool SectionReader::number(const char* key, double& value, const NumberRange& range) {
  const ConfigNode* found = written(key);
  if (found == nullptr) return false;
  const std::optional<double> parsed = parse_number(*found);
  if (!parsed || !range.contains(*parsed)) wrong(key, *found, range.description);
  value = *parsed;
  return true;
}

bool SectionReader::boolean(const char* key, bool& value) {
  const ConfigNode* found = written(key);
  if (found == nullptr) return false;
  const bool is_boolean =
      found->kind == Kind::kScalar && !found->is_string && (found->text == "true" || found->text == "false");
  if (!is_boolean) wrong(key, *found, "true or false");
  value = found->text == "true";
  return true;
}

bool SectionReader::text(const char* key, std::string& value) {
  const ConfigNode* found = written(key);
  if (found == nullptr) return false;
  if (found->kind != Kind::kScalar || found->text.empty()) wrong(key, *found, "a text that is not empty");
  value = found->text;
  return true;
}

bool SectionReader::optional_text(const char* key, std::string& value) {
  return child(key) != nullptr && text(key, value);
}

SectionReader SectionReader::section(const char* key) {
  const ConfigNode* found = child(key);
  if (found != nullptr && found->kind != Kind::kMap) wrong(key, *found, "a section of keys");
  return SectionReader(found, full_key(key), known_keys_);
}

std::vector<const ConfigNode*> SectionReader::items(const char* key) {
  const ConfigNode* found = child(key);
  if (found == nullptr) return {};
  if (found->kind != Kind::kList) return {found};
  std::vector<const ConfigNode*> all;
  for (const ConfigNode& item : found->children) all.push_back(&item);
  return all;
}

void refuse_unknown_keys(const ConfigNode& root, const std::vector<std::string>& known_keys) {
  refuse_unknown_below(root, "", known_keys);
}

}  // namespace octavo

#include "app/config/config_values.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "core/error.h"
#include "core/files/json_input.h"
#include "core/suggestions.h"
#include "model/architecture/model_fields.h"

namespace octavo {

namespace {

using Kind = ConfigNode::Kind;
using OrderedJson = nlohmann::ordered_json;

// Expands an exponent, such as "1e3" or "2.5e5", to decimal digits. Returns other texts unchanged, and nothing if the
// number is not an integer.
std::optional<std::string> without_exponent(const std::string& text) {
  const size_t e = text.find_first_of("eE");
  if (e == std::string::npos) return text;
  std::string digits = text.substr(0, e);
  size_t exponent = 0;
  const size_t begin = text.find('+', e + 1) == e + 1 ? e + 2 : e + 1;
  const auto [end, error] = std::from_chars(text.data() + begin, text.data() + text.size(), exponent);
  constexpr size_t kLargestExponent = 18;
  if (error != std::errc() || end != text.data() + text.size() || exponent > kLargestExponent) return std::nullopt;
  if (const size_t point = digits.find('.'); point != std::string::npos) {
    const size_t decimals = digits.size() - point - 1;
    if (decimals == 0 || decimals > exponent) return std::nullopt;
    digits.erase(point, 1);
    exponent -= decimals;
  }
  // Removes the leading zeros of numbers such as 0.1e4.
  if (digits.size() > 1) digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size() - 1));
  return digits + std::string(exponent, '0');
}

template <typename Integer>
std::optional<Integer> parse_integer(const ConfigNode& node) {
  if (node.kind != Kind::kScalar || node.is_string) return std::nullopt;
  const std::optional<std::string> plain = without_exponent(node.text);
  if (!plain) return std::nullopt;
  const std::string_view text = *plain;
  const std::string_view digits = text.starts_with('-') ? text.substr(1) : text;
  // YAML 1.1 reads 010 as eight, and YAML 1.2 as ten, so such numbers are refused.
  if (digits.size() > 1 && digits.front() == '0') return std::nullopt;
  Integer value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> parse_number(const ConfigNode& node) {
  if (node.kind != Kind::kScalar || node.is_string) return std::nullopt;
  double value = 0;
  const char* end_of_text = node.text.data() + node.text.size();
  const auto [end, error] = std::from_chars(node.text.data(), end_of_text, value);
  if (error != std::errc() || end != end_of_text || !std::isfinite(value)) return std::nullopt;
  return value;
}

bool is_none(const ConfigNode& node) {
  return node.kind == Kind::kNull || (node.kind == Kind::kScalar && node.text == "none");
}

// Reads one key of a map in a list.
template <typename Rule, typename Value>
void read_item(const ConfigNode& item, const std::string& list, const char* key, const Rule& rule, Value& value) {
  const ConfigNode* found = item.find(key);
  if (found != nullptr && !rule.read(*found, value)) refuse_value(*found, list + "." + key, rule.expected());
}

// Returns whether YAML reads the bare word back as the same text. All other texts are quoted as in JSON.
bool is_plain_word(const std::string& text) {
  const auto is_word_character = [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '/' || c == '-' || c == '.';
  };
  const bool starts_well =
      !text.empty() && (std::isalpha(static_cast<unsigned char>(text.front())) || text.front() == '/');
  constexpr const char* kReserved[] = {"null", "Null", "NULL", "true", "false"};
  return starts_well && std::ranges::all_of(text, is_word_character) &&
         std::ranges::find(kReserved, text) == std::end(kReserved);
}

}  // namespace

void refuse_value(const ConfigNode& found, std::string_view key, std::string_view expected) {
  throw InputError(fmt::format("{}: {} is {}, expected {}", found.where, key, found.describe(), expected));
}

void refuse_choice(const ConfigNode& found, std::string_view key, std::string_view expected,
                   std::span<const std::string> choices) {
  const std::optional<std::string> nearest = nearest_name(found.text, choices);
  refuse_value(found, key, nearest ? fmt::format("{}; did you mean {}?", expected, *nearest) : std::string(expected));
}

std::string yaml_text(const OrderedJson& value) {
  if (value.is_string() && is_plain_word(value.get<std::string>())) return value.get<std::string>();
  if (!value.is_structured()) return printable_json(value);
  std::string text;
  for (const auto& [key, item] : value.items()) {
    text += text.empty() ? "" : ", ";
    text += value.is_object() ? key + ": " + yaml_text(item) : yaml_text(item);
  }
  return value.is_object() ? "{" + text + "}" : "[" + text + "]";
}

std::string Integers::expected() const { return fmt::format("an integer from {} to {}", low, high); }

bool Integers::read(const ConfigNode& node, int64_t& value) const {
  const std::optional<int64_t> parsed = parse_integer<int64_t>(node);
  if (!parsed || *parsed < low || *parsed > high) return false;
  value = *parsed;
  return true;
}

std::string RanksOrRest::expected() const { return Integers::expected() + ", or -1"; }

bool RanksOrRest::read(const ConfigNode& node, int64_t& value) const {
  return Integers(-1, -1).read(node, value) || Integers::read(node, value);
}

template <typename Integer>
bool OptionalInteger<Integer>::read(const ConfigNode& node, std::optional<Integer>& value) const {
  int64_t wide = 0;
  const bool is_empty = node.kind == Kind::kNull;
  if (!is_empty && !range.read(node, wide)) return false;
  value = is_empty ? std::nullopt : std::optional(static_cast<Integer>(wide));
  return true;
}

template <typename Integer>
OrderedJson OptionalInteger<Integer>::write(const std::optional<Integer>& value) const {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

template struct OptionalInteger<int32_t>;
template struct OptionalInteger<int64_t>;

std::string Seed::expected() const {
  return fmt::format("an integer from 0 to {}", std::numeric_limits<uint64_t>::max());
}

bool Seed::read(const ConfigNode& node, uint64_t& value) const {
  const std::optional<uint64_t> parsed = parse_integer<uint64_t>(node);
  value = parsed.value_or(value);
  return parsed.has_value();
}

bool Numbers::read(const ConfigNode& node, double& value) const {
  const std::optional<double> parsed = parse_number(node);
  const auto is_within = [this](double number) {
    return (includes_low ? number >= low : number > low) && (includes_high ? number <= high : number < high);
  };
  if (!parsed || !is_within(*parsed) || !is_within(static_cast<float>(*parsed))) return false;
  value = *parsed;
  return true;
}

bool ZeroOr::read(const ConfigNode& node, double& value) const {
  return Numbers(0, 0, true, true, "").read(node, value) || Numbers::read(node, value);
}

bool Flag::read(const ConfigNode& node, bool& value) const {
  if (node.kind != Kind::kScalar || node.is_string || (node.text != "true" && node.text != "false")) return false;
  value = node.text == "true";
  return true;
}

bool Text::read(const ConfigNode& node, std::string& value) const {
  if (node.kind != Kind::kScalar || node.text.empty()) return false;
  value = node.text;
  return true;
}

bool PathText::read(const ConfigNode& node, std::string& value) const {
  return Text::read(node, value) && expand(node, value);
}

bool PathText::expand(const ConfigNode& node, std::string& path) {
  const auto variable = [&](const std::string& name) -> std::string {
    const char* found = std::getenv(name.c_str());
    CHECK_INPUT(found != nullptr && *found != '\0',
                "{}: the path {} needs the environment variable {}, which is not set", node.where, node.describe(),
                name);
    return found;
  };
  if (path == "~" || path.starts_with("~/")) path.replace(0, 1, variable("HOME"));
  for (size_t begin = path.find("${"); begin != std::string::npos; begin = path.find("${", begin)) {
    const size_t end = path.find('}', begin);
    if (end == std::string::npos || end == begin + 2) return false;
    const std::string content = variable(path.substr(begin + 2, end - begin - 2));
    path.replace(begin, end + 1 - begin, content);
    begin += content.size();
  }
  return true;
}

bool OptionalPath::read(const ConfigNode& node, std::string& value) const {
  return OptionalText::read(node, value) && PathText::expand(node, value);
}

bool OptionalText::read(const ConfigNode& node, std::string& value) const {
  if (!is_none(node)) return Text::read(node, value);
  value.clear();
  return true;
}

OrderedJson OptionalText::write(const std::string& value) const {
  return value.empty() ? OrderedJson(nullptr) : OrderedJson(value);
}

bool IntegerList::read(const ConfigNode& node, std::vector<int64_t>& values) const {
  std::vector<int64_t> found;
  for (const ConfigNode& item : node.items()) {
    if (!each.read(item, found.emplace_back())) refuse_value(item, key, expected());
  }
  values = std::move(found);
  return true;
}

bool Paths::read(const ConfigNode& node, std::vector<std::string>& value) const {
  std::vector<std::string> texts;
  for (const ConfigNode& item : node.items()) {
    if (!PathText{}.read(item, texts.emplace_back())) return false;
  }
  if (texts.empty()) return false;
  value = std::move(texts);
  return true;
}

OrderedJson Paths::write(const std::vector<std::string>& value) const {
  return value.size() == 1 ? OrderedJson(value.front()) : OrderedJson(value);
}

bool Datasets::read(const ConfigNode& node, std::vector<DatasetSource>& sources) const {
  sources.clear();
  for (const ConfigNode& item : node.items()) {
    DatasetSource source;
    if (item.kind == Kind::kMap) {
      read_item(item, key, "path", Paths{}, source.paths);
      read_item(item, key, "name", Text{}, source.name);
      read_item(item, key, "weight", kNonNegative, source.weight);
      read_item(item, key, "max_epochs", kNonNegative, source.max_epochs);
    } else if (!PathText{}.read(item, source.paths.emplace_back())) {
      refuse_value(item, key, expected());
    }
    sources.push_back(std::move(source));
  }
  return true;
}

OrderedJson Datasets::write(const std::vector<DatasetSource>& sources) const {
  OrderedJson list = OrderedJson::array();
  for (const DatasetSource& source : sources) {
    OrderedJson item{{"path", Paths{}.write(source.paths)}, {"weight", source.weight}};
    if (!source.name.empty()) item["name"] = source.name;
    if (source.max_epochs > 0) item["max_epochs"] = source.max_epochs;
    list.push_back(std::move(item));
  }
  return list;
}

bool SampleRanges::read(const ConfigNode& node, std::vector<SampleRange>& ranges) const {
  ranges.clear();
  if (node.kind == Kind::kNull) return true;
  if (node.kind != Kind::kList) return false;
  constexpr Integers kSamples{0, kMaxSample};
  for (const ConfigNode& item : node.children) {
    SampleRange& range = ranges.emplace_back();
    const bool is_pair = item.kind == Kind::kList && item.children.size() == 2 &&
                         kSamples.read(item.children[0], range.begin) && kSamples.read(item.children[1], range.end);
    if (!is_pair || range.begin >= range.end) refuse_value(item, key, expected());
  }
  return true;
}

OrderedJson SampleRanges::write(const std::vector<SampleRange>& ranges) const {
  OrderedJson list = OrderedJson::array();
  for (const SampleRange& range : ranges) list.push_back({range.begin, range.end});
  return list;
}

bool BatchPhases::read(const ConfigNode& node, std::vector<BatchPhase>& phases) const {
  phases.clear();
  for (const ConfigNode& item : node.items()) {
    if (item.find("batch_size") == nullptr || item.find("steps") == nullptr) refuse_value(item, key, expected());
    BatchPhase& phase = phases.emplace_back();
    read_item(item, key, "batch_size", batch_size, phase.batch_size);
    read_item(item, key, "steps", steps, phase.steps);
  }
  return true;
}

OrderedJson BatchPhases::write(const std::vector<BatchPhase>& phases) const {
  OrderedJson list = OrderedJson::array();
  for (const BatchPhase& phase : phases) list.push_back({{"batch_size", phase.batch_size}, {"steps", phase.steps}});
  return list;
}

bool OptionalSection::read(const ConfigNode& node, std::optional<RopeScaling>& value) const {
  if (is_none(node)) {
    value.reset();
  } else if (node.kind == Kind::kMap) {
    value = value.value_or(RopeScaling{});
  } else {
    return false;
  }
  return true;
}

OrderedJson OptionalSection::write(const std::optional<RopeScaling>& value) const {
  return shape_to_json<OrderedJson>(value);
}

}  // namespace octavo

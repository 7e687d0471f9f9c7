#include "app/config/config_node.h"

#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <sstream>

#include "core/error.h"
#include "core/files/input_file.h"
#include "core/printable.h"

namespace octavo {

namespace {

using Kind = ConfigNode::Kind;

constexpr size_t kMaxDescribedText = 80;
// Limit of nesting. An anchor that contains itself makes a YAML tree of infinite depth, and no config needs more than
// this.
constexpr int kMaxDepth = 16;
// Limits that allow tens of thousands of datasets and keep reading a config below a second and about 300 MB.
constexpr int64_t kMaxConfigBytes = int64_t{1} << 20;
constexpr int64_t kMaxNodes = 100'000;
constexpr size_t kMaxKeys = 1000;  // Limit of the keys of one map.
constexpr size_t kMaxKeyBytes = 200;
constexpr const char* kCommandLine = "command line";

// Origin of YAML text: a file, which has line numbers, or a command-line argument, which has none.
struct Origin {
  std::string name;      // Names the place of a key in messages.
  std::string document;  // Names the whole document in messages.
  bool has_lines = true;

  std::string at(const YAML::Mark& mark) const {
    return has_lines && mark.line >= 0 ? fmt::format("{}:{}", name, mark.line + 1) : name;
  }
};

// Checks a key of a map, or the name before the '=' of an override.
void check_key(std::string_view key, const std::string& where) {
  CHECK_INPUT(key.size() <= kMaxKeyBytes, "{}: the key '{}' is {} bytes long, expected at most {}", where,
              printable(key, kMaxDescribedText), key.size(), size_t{kMaxKeyBytes});
  const bool has_empty_part =
      key.empty() || key.front() == '.' || key.back() == '.' || key.find("..") != std::string_view::npos;
  CHECK_INPUT(!has_empty_part, "{}: '{}' is an empty key or has an empty part, expected a name such as training.steps",
              where, printable(key));
}

// Returns `value` nested in one map per part of the dotted `key`. `where` is the place of these maps.
ConfigNode wrap_in_maps(const std::string& key, ConfigNode value, const std::string& where) {
  const size_t dot = key.rfind('.');
  ConfigNode map;
  map.kind = Kind::kMap;
  map.where = where;
  map.keys.push_back(key.substr(dot + 1));  // The whole key if there is no dot.
  map.children.push_back(std::move(value));
  return dot == std::string::npos ? map : wrap_in_maps(key.substr(0, dot), std::move(map), where);
}

enum class Repeated : uint8_t { kReplaces, kIsRefused };

// Merges `value` into `target`, the node with the full name `name`. Two maps are merged key by key. Any other value
// replaces the target or is refused.
void merge(ConfigNode& target, ConfigNode value, Repeated repeated, const std::string& name = "") {
  if (target.kind != Kind::kMap || value.kind != Kind::kMap) {
    CHECK_INPUT(repeated == Repeated::kReplaces, "{}: the key '{}' is given twice, the other time at {}", value.where,
                name, target.where);
    target = std::move(value);
    return;
  }
  for (size_t i = 0; i < value.keys.size(); ++i) {
    const auto found = std::ranges::find(target.keys, value.keys[i]);
    if (found != target.keys.end()) {
      merge(target.children[static_cast<size_t>(found - target.keys.begin())], std::move(value.children[i]), repeated,
            name.empty() ? *found : fmt::format("{}.{}", name, *found));
    } else {
      CHECK_INPUT(target.keys.size() < kMaxKeys, "{}: a map has more than {} keys, expected fewer", value.where,
                  size_t{kMaxKeys});
      target.keys.push_back(value.keys[i]);
      target.children.push_back(std::move(value.children[i]));
    }
  }
}

// Adds an entry to a map. A dotted key stands for nested maps, so that every key of a tree is a single name.
void add_entry(ConfigNode& map, const std::string& key, ConfigNode value) {
  check_key(key, value.where);
  std::string where = value.where;
  merge(map, wrap_in_maps(key, std::move(value), where), Repeated::kIsRefused);
}

// Refuses tags other than those that only name the kind of a value, which its own rule checks.
void check_tag(const std::string& tag, const std::string& where) {
  constexpr std::string_view kCore = "tag:yaml.org,2002:";
  constexpr std::string_view kKinds[] = {"str", "int", "float", "bool", "null", "seq", "map"};
  if (tag.empty() || tag == "?" || tag == "!") return;
  const bool is_kind =
      tag.starts_with(kCore) && std::ranges::find(kKinds, tag.substr(kCore.size())) != std::end(kKinds);
  CHECK_INPUT(is_kind, "{}: the tag {} is not read, expected a key or value without a tag", where,
              printable(tag, kMaxDescribedText));
}

// Builds the tree of a YAML document. The tree repeats the nodes of an anchor for each of its aliases, so a short
// document could expand to any number of nodes. The limits above bound that number.
class TreeBuilder {
 public:
  // `text` is the text of the whole document.
  TreeBuilder(const Origin& origin, const std::string& text) : origin_(origin), text_(text) {}

  // Builds the tree. If there are merge keys (<<), builds it twice, because only the first pass finds the merged maps.
  ConfigNode build(const YAML::Node& yaml) {
    ConfigNode root = build(yaml, 0);
    if (merged_.empty()) return root;
    nodes_ = 0;
    return build(yaml, 0);
  }

 private:
  ConfigNode build(const YAML::Node& yaml, int depth) {
    ConfigNode node;
    node.where = origin_.at(yaml.Mark());
    count(node.where, depth);
    check_tag(yaml.Tag(), node.where);
    if (yaml.IsScalar()) {
      node.kind = Kind::kScalar;
      node.text = yaml.Scalar();
      CHECK_INPUT(is_utf8(node.text), "{}: the value {} is invalid UTF-8", node.where, node.describe());
      // Without this check the system would open the path before the NUL byte.
      CHECK_INPUT(node.text.find('\0') == std::string::npos, "{}: the value {} has a NUL byte", node.where,
                  node.describe());
      node.is_string = yaml.Tag() == "!" || yaml.Tag() == "tag:yaml.org,2002:str";
    } else if (yaml.IsSequence()) {
      node.kind = Kind::kList;
      for (const auto& item : yaml) node.children.push_back(build(item, depth + 1));
    } else if (yaml.IsMap()) {
      node.kind = Kind::kMap;
      node.is_merged = merged_.contains(yaml.Mark().pos);
      std::set<std::string> known;
      add_map_entries(yaml, depth, node, known);
    } else if (is_written_out(yaml)) {
      node.text = "null";
    }
    return node;
  }

  // Returns whether a null is written as a word (null or ~). The mark of an empty value points at the text that follows
  // it.
  bool is_written_out(const YAML::Node& null) const {
    const int position = null.Mark().pos;
    if (position < 0) return false;
    for (const std::string_view word : {"~", "null", "Null", "NULL"}) {
      if (std::string_view(text_).substr(std::min<size_t>(position, text_.size())).starts_with(word)) return true;
    }
    return false;
  }

  // Counts a node at `where` and checks the limits.
  void count(const std::string& where, int depth) {
    CHECK_INPUT(depth <= kMaxDepth, "{}: lists and maps are nested more than {} deep", where, int{kMaxDepth});
    CHECK_INPUT(++nodes_ <= kMaxNodes, "{} expands to more than {} lists, maps and values, expected a smaller config",
                origin_.document, int64_t{kMaxNodes});
  }

  // Adds the entries of `yaml` to `node`, except for keys in `known`, which has the keys of the maps into which `yaml`
  // is merged. Then merges the values of the merge key <<, as https://yaml.org/type/merge.html defines it.
  void add_map_entries(const YAML::Node& yaml, int depth, ConfigNode& node, std::set<std::string>& known) {
    std::set<std::string> own;
    std::vector<YAML::Node> merged;
    for (const auto& entry : yaml) {
      const std::string where = origin_.at(entry.first.Mark());
      check_tag(entry.first.Tag(), where);
      CHECK_INPUT(entry.first.IsScalar(), "{}: a key is a list, a map or empty, expected a name", where);
      const std::string& key = entry.first.Scalar();
      CHECK_INPUT(is_utf8(key), "{}: the key '{}' is invalid UTF-8", where, printable(key));
      CHECK_INPUT(own.insert(key).second, "{}: the key '{}' is given twice", where, printable(key));
      if (key == "<<" && entry.first.Tag() != "!") {
        merged = entry.second.IsSequence() ? std::vector<YAML::Node>(entry.second.begin(), entry.second.end())
                                           : std::vector<YAML::Node>{entry.second};
        for (const YAML::Node& map : merged)
          CHECK_INPUT(map.IsMap(), "{}: the merge key << has another value than a map or a list of maps", where);
      } else if (known.insert(key).second) {
        ConfigNode value = build(entry.second, depth + 1);
        value.where = where;
        add_entry(node, key, std::move(value));
      } else {
        const ConfigNode* other = node.find(key);
        CHECK_INPUT(
            other == nullptr || other->kind != Kind::kMap || !entry.second.IsMap(),
            "{}: << merges the map '{}', but the one at {} replaces the whole of it, expected << inside of that "
            "one",
            where, printable(key), other->where);
      }
    }
    for (const YAML::Node& map : merged) {
      count(origin_.at(map.Mark()), depth + 1);
      merged_.insert(map.Mark().pos);
      add_map_entries(map, depth + 1, node, known);
    }
  }

  const Origin& origin_;
  const std::string& text_;
  int64_t nodes_ = 0;
  std::set<int> merged_;  // Positions of the maps that merge keys merge.
};

// Discards the events of the parser, which only checks the syntax.
class IgnoredDocument final : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

// Checks that a text has no second YAML document. YAML::LoadAll() cannot be used: for `{a: b}, c` it returns documents
// without end, because yaml-cpp does not advance past the comma.
bool holds_one_document(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  IgnoredDocument document;
  return !parser.HandleNextDocument(document) || !parser.HandleNextDocument(document);
}

ConfigNode parse_yaml(const std::string& text, const Origin& origin) {
  try {
    CHECK_INPUT(holds_one_document(text), "{} has more text after its first YAML document, expected a single document",
                origin.document);
    return TreeBuilder(origin, text).build(YAML::Load(text));
  } catch (const YAML::DeepRecursion&) {  // yaml-cpp's own limit of some hundred levels.
    throw InputError(fmt::format("{}: lists and maps are nested more than {} deep", origin.document, int{kMaxDepth}));
  } catch (const YAML::Exception& error) {
    const bool has_place = origin.has_lines && error.mark.line >= 0;
    const std::string place =
        has_place ? fmt::format(", line {}, column {}", error.mark.line + 1, error.mark.column + 1) : "";
    // Inside brackets, the brace of ${NAME} begins a map, and yaml-cpp reports a syntax error there.
    const bool is_variable = error.mark.pos > 0 && std::string_view(text).substr(0, error.mark.pos + 1).ends_with("${");
    CHECK_INPUT(!is_variable,
                "{}{} has ${{ without quotes inside [...] or {{...}}, expected quotes around the value, such as "
                "\"${{NAME}}/corpus\"",
                origin.document, place);
    throw InputError(fmt::format("{}{} is not valid YAML: {}", origin.document, place, error.msg));
  }
}

// Returns the comment at the end of `text`, or an empty text. `value` is the parsed text. The text in front of a
// comment has the same value, while the text in front of a # in a quoted value is not valid YAML. Only looks at the
// first kMaxParsed places with a #.
constexpr int kMaxParsed = 100;
std::string comment_in(const std::string& text, const ConfigNode& value, const Origin& origin) {
  int parsed = 0;
  for (size_t begin = text.find('#'); begin != std::string::npos && parsed < kMaxParsed;
       begin = text.find('#', begin + 1), ++parsed) {
    try {
      if (parse_yaml(text.substr(0, begin), origin) == value) return text.substr(begin);
    } catch (const InputError&) {  // The # is part of a value.
    }
  }
  return "";
}

void check_path_is_open(const ConfigNode& root, const std::string& key, const std::string& override_text) {
  const ConfigNode* node = &root;
  for (size_t dot = key.find('.'), begin = 0; dot != std::string::npos; begin = dot + 1, dot = key.find('.', begin)) {
    node = node->find(key.substr(begin, dot - begin));
    // `rope_scaling: none` stands for an absent map, so its keys can be set as if it were empty.
    if (node == nullptr || node->kind == Kind::kNull || node->text == "none") return;
    CHECK_INPUT(node->kind == Kind::kMap, "the argument '{}' sets a key inside of {}, which is {} ({}), not a section",
                override_text, key.substr(0, dot), node->describe(), node->where);
  }
}

}  // namespace

const ConfigNode* ConfigNode::find(std::string_view key) const {
  const auto found = std::ranges::find(keys, key);
  return found == keys.end() ? nullptr : &children[static_cast<size_t>(found - keys.begin())];
}

const ConfigNode* ConfigNode::find_name(std::string_view name) const {
  const ConfigNode* node = this;
  for (size_t begin = 0; node != nullptr;) {
    const size_t end = name.find('.', begin);
    node = node->find(name.substr(begin, end - begin));
    if (end == std::string_view::npos) break;
    begin = end + 1;
  }
  return node;
}

std::span<const ConfigNode> ConfigNode::items() const {
  if (kind == Kind::kNull) return {};
  return kind == Kind::kList ? std::span(children) : std::span(this, 1);
}

std::string ConfigNode::describe() const {
  switch (kind) {
    case Kind::kNull:
      return "empty";
    case Kind::kList:
      return "a list";
    case Kind::kMap:
      return "a map";
    case Kind::kScalar:
      break;
  }
  const std::string shown = printable(text, kMaxDescribedText);
  return is_string ? fmt::format("the string \"{}\"", shown) : fmt::format("'{}'", shown);
}

ConfigNode node_from_file(const std::string& path) {
  ConfigNode root = parse_yaml(read_input_file(path, kMaxConfigBytes), Origin{path, path});
  CHECK_INPUT(root.kind != Kind::kNull, "{} is empty, expected a YAML map of sections", path);
  CHECK_INPUT(root.kind == Kind::kMap, "{} holds {}, expected a YAML map of sections", path, root.describe());
  return root;
}

ConfigNode node_from_json(const nlohmann::ordered_json& json, const std::string& where) {
  ConfigNode node;
  node.where = where;
  if (json.is_object()) {
    node.kind = Kind::kMap;
    for (const auto& [key, value] : json.items()) {
      add_entry(node, key, node_from_json(value, where));
    }
  } else if (json.is_array()) {
    node.kind = Kind::kList;
    for (const auto& item : json) node.children.push_back(node_from_json(item, where));
  } else if (json.is_null()) {
    node.text = "null";
  } else {
    node.kind = Kind::kScalar;
    node.is_string = json.is_string();
    node.text = json.is_string() ? json.get<std::string>() : json.dump();
  }
  return node;
}

void apply_override(ConfigNode& root, const std::string& override_text) {
  const size_t equals = override_text.find('=');
  CHECK_INPUT(equals != std::string::npos, "the argument '{}' has no '=', expected section.key=value", override_text);
  const std::string key = override_text.substr(0, equals);
  const Origin origin{kCommandLine, fmt::format("the argument '{}'", override_text), false};
  check_key(key, origin.document);
  check_path_is_open(root, key, override_text);
  const std::string text = override_text.substr(equals + 1);
  ConfigNode value = parse_yaml(text, origin);
  const std::string comment = comment_in(text, value, origin);
  CHECK_INPUT(
      comment.empty(),
      "the argument '{}' ends with the YAML comment '{}', expected no comment, or quotes inside of the argument "
      "around a value with '#': '{}=\"VALUE\"'",
      override_text, comment, key);
  // An empty section would discard all keys that the file sets in it. An empty key is checked by its own rule.
  CHECK_INPUT(value.kind != Kind::kNull || key.find('.') != std::string::npos,
              "the argument '{}' is empty, expected a value", override_text);
  merge(root, wrap_in_maps(key, std::move(value), kCommandLine), Repeated::kReplaces);
}

}  // namespace octavo

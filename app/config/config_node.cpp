#include "app/config/config_node.h"

#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <sstream>
#include <unordered_set>

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

void check_key_length(std::string_view key, const std::string& where) {
  CHECK_INPUT(key.size() <= kMaxKeyBytes, "{}: the key '{}' is {} bytes long, expected at most {}", where,
              printable(key, kMaxDescribedText), key.size(), size_t{kMaxKeyBytes});
}

// Builds the tree of a YAML document. The tree contains a replica of each alias, so that a short document can expand to
// any number of nodes; the limits bound them.
class TreeBuilder {
 public:
  // `text` is the text of the whole document.
  TreeBuilder(const Origin& origin, const std::string& text) : origin_(origin), text_(text) {}

  ConfigNode build(const YAML::Node& yaml, int depth = 0) {
    ConfigNode node;
    node.where = origin_.at(yaml.Mark());
    CHECK_INPUT(depth <= kMaxDepth, "{}: lists and maps are nested more than {} deep", node.where, int{kMaxDepth});
    CHECK_INPUT(++nodes_ <= kMaxNodes, "{} expands to more than {} lists, maps and values, expected a smaller config",
                origin_.document, int64_t{kMaxNodes});
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
      add_map_entries(yaml, depth, node);
    } else if (is_written_out(yaml)) {
      node.text = "null";
    }
    return node;
  }

 private:
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

  void add_map_entries(const YAML::Node& yaml, int depth, ConfigNode& node) {
    std::unordered_set<std::string_view> known;
    for (const auto& entry : yaml) {
      const std::string where = origin_.at(entry.first.Mark());
      CHECK_INPUT(entry.first.IsScalar(), "{}: a key is a list, a map or empty, expected a name", where);
      const std::string& key = entry.first.Scalar();
      check_key_length(key, where);
      CHECK_INPUT(is_utf8(key), "{}: the key '{}' is invalid UTF-8", where, printable(key));
      CHECK_INPUT(known.insert(key).second, "{}: the key '{}' is given twice", where, key);
      node.children.push_back(build(entry.second, depth + 1));
      node.keys.push_back(key);
    }
  }

  const Origin& origin_;
  const std::string& text_;
  int64_t nodes_ = 0;
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

void merge(ConfigNode& target, ConfigNode value) {
  if (target.kind != Kind::kMap || value.kind != Kind::kMap) {
    target = std::move(value);
    return;
  }
  for (size_t i = 0; i < value.keys.size(); ++i) {
    const auto found = std::find(target.keys.begin(), target.keys.end(), value.keys[i]);
    if (found != target.keys.end()) {
      merge(target.children[static_cast<size_t>(found - target.keys.begin())], std::move(value.children[i]));
    } else {
      target.keys.push_back(value.keys[i]);
      target.children.push_back(std::move(value.children[i]));
    }
  }
}

// Returns `value` nested in one map per part of the dotted `key`.
ConfigNode wrap_in_maps(const std::string& key, ConfigNode value) {
  const size_t dot = key.rfind('.');
  const std::string last = dot == std::string::npos ? key : key.substr(dot + 1);
  ConfigNode map;
  map.kind = Kind::kMap;
  map.where = kCommandLine;
  map.keys.push_back(last);
  map.children.push_back(std::move(value));
  return dot == std::string::npos ? map : wrap_in_maps(key.substr(0, dot), std::move(map));
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
  const auto found = std::find(keys.begin(), keys.end(), key);
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
      node.keys.push_back(key);
      node.children.push_back(node_from_json(value, where));
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
  const bool has_empty_part =
      key.empty() || key.front() == '.' || key.back() == '.' || key.find("..") != std::string::npos;
  CHECK_INPUT(!has_empty_part, "the argument '{}' has an empty key, expected section.key=value", override_text);
  check_key_length(key, kCommandLine);
  check_path_is_open(root, key, override_text);
  const Origin origin{kCommandLine, fmt::format("the argument '{}'", override_text), false};
  ConfigNode value = parse_yaml(override_text.substr(equals + 1), origin);
  // An empty section would discard all keys that the file sets in it. An empty key is checked by its own rule.
  CHECK_INPUT(value.kind != Kind::kNull || key.find('.') != std::string::npos,
              "the argument '{}' is empty, expected a value", override_text);
  merge(root, wrap_in_maps(key, std::move(value)));
}

}  // namespace octavo
